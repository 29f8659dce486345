"""The own section of `benchmarks/gpu`: what of a replayed step of the UNet is the pack's own part, and where it goes.

Each row is the one before with one more part of the way, taken in turns: the bare replay of the pack's own capture;
copies of inputs and of the result; the hand-over to the device's thread; the checks of `LoadedGraph.call`; the node's
hook as ComfyUI calls it. The same without replaying. `ms` is waited for, from an idle device to an idle device,
`processor_ms` is until the call returns.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .common import Bench, always_replayed, never_replayed, synchronize
from .compile import compile_at_once


def run(bench: Bench) -> None:
    """Compile or restore the graph for any size, and time the parts of its call."""
    import torch

    from .graphs import Unet

    with torch.inference_mode():
        unet = Unet(bench, bench.model)
        unet.compiles.pop("exact", None)
        compile_at_once(bench, dict(unet.compiles), bench.deadline - 60)
        compiled = unet.compiles["any_size"]
        if compiled.refused is not None:
            bench.put("own", refused=compiled.refused)
            return
        checked = unet.call("any_size", unet.given, unet.main)
        for name, policy in (("launched", never_replayed()), ("replayed", always_replayed())):
            with policy, by_the_node(unet, compiled.engine) as step:
                for _ in range(6):
                    checked()
                parts = calls(compiled.graph, tuple(unet.given), name == "replayed")
                bench.put("own", **{name: in_turns({**parts, "checked": checked, "by the node": step}, bench.rounds)})


def captured_calls(graph: Any) -> list[Any]:
    """The CUDA graphs of a loaded graph's calls."""
    cuda_graphs = graph._runners.first.runner.cuda_graphs
    return [] if cuda_graphs is None else [*cuda_graphs._captured.values()]


def calls(graph: Any, inputs: tuple[Any, ...], replayed: bool) -> dict[str, Callable[[], Any]]:
    """The parts of a call below its checks."""
    runner = graph._runners.first.runner
    captured = next(iter(captured_calls(graph)), None) if replayed else None
    if captured is None:
        inner = getattr(runner, "runner", runner)
        return {"graph": lambda: inner(*inputs), "in its thread": lambda: runner(*inputs)}
    return {
        "bare replay": captured.graph.replay,
        "with copies": lambda: captured.replay(inputs),
        "in its thread": lambda: runner(*inputs),
    }


@contextmanager
def by_the_node(unet: Any, engine: Any) -> Iterator[Callable[[], Any]]:
    """A step as ComfyUI's sampling makes it, at the end of its wrappers."""
    from onegraph.host.calls import model_hook
    from onegraph.host.comfyui.model_source import source_of
    from onegraph.host.families import MODELS, family_of
    from onegraph.runtime.obtain import registry

    module, clone = unet.module, unet.patcher.clone()
    family: Any = family_of(module, MODELS)
    hook = model_hook.ModelHook(family, model_hook.ModelNodeOptions(), None, source_of(clone, module))
    hook.attach(clone)
    x, timesteps, context, y = unet.given
    with registry.using(engine):
        hook.on_pre_run(clone)

        def step() -> Any:
            options: dict[str, Any] = {"cond_or_uncond": [0, 1], "sigmas": timesteps[:1]}
            more = {"y": y, "control": None, "transformer_options": options}
            return model_hook._innermost(module, module._forward, x, timesteps, context, **more)

        try:
            yield step
        finally:
            hook.on_cleanup(clone)


def in_turns(parts: dict[str, Callable[[], Any]], rounds: int, warm: int = 3) -> dict[str, dict[str, float]]:
    """Milliseconds of each, waited for and until it returns: the median of the rounds, and the least.

    Each round has an order of its own: what follows a short part finds a device that is cooler, and faster by 1 %.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in parts}
    drawn = random.Random(1)
    for turn in range(warm + rounds):
        for name in drawn.sample([*parts], len(parts)):
            synchronize()
            began = time.perf_counter()
            parts[name]()
            returned = time.perf_counter()
            synchronize()
            if turn >= warm:
                found[name].append((1e3 * (time.perf_counter() - began), 1e3 * (returned - began)))
    return {
        name: {
            "ms": round(statistics.median(one for one, _ in times), 3),
            "least_ms": round(min(one for one, _ in times), 3),
            "processor_ms": round(statistics.median(one for _, one in times), 3),
        }
        for name, times in found.items()
    }
