"""The controlnet section of `benchmarks/gpu`: sampling steered by one ControlNet, both nodes against eager."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from .common import Bench, OutOfTime, synchronize
from .compile import Compile, compile_at_once, recorded
from .sampling import SHORT, timed

if TYPE_CHECKING:
    from onegraph.runtime.counters import Counters

RESERVE = 40.0  # seconds for what follows the compiles


def run(bench: Bench) -> None:
    """Compile both graphs side by side, then sample in turns; torch.compile comes last, as far as time goes."""
    import torch
    from headless import host, models
    from support.comfyui import controlnet

    from onegraph.host.calls import controlnet_hook as net_hook
    from onegraph.host.calls import model_hook as hook
    from onegraph.runtime.graphs.faithfulness import relative_l2
    from onegraph.runtime.obtain.registry import registry

    file = bench.work / "base" / "models" / "controlnet" / f"bench_{bench.model}.safetensors"
    controlnet.write_controlnet(bench.model, file, device="cuda" if bench.device == "cuda" else "cpu")
    lora = models.write_lora(bench.model, bench.work / "base" / "models" / "loras" / "bench.safetensors", scale=0.3)
    net, model = controlnet.load(file), host.load(bench.checkpoint(bench.model))
    fast_model = hook.compile_model(model, hook.ModelNodeOptions(), "bench")[0]
    fast_net = net_hook.compile_controlnet(net, hook.ModelNodeOptions(), "bench-net")[0]
    size = {"height": bench.side, "width": bench.side, "context_width": models.config(bench.model)["context_dim"]}

    def settings(steering: Any, strength: float = 1.0) -> dict[str, Any]:
        positive, negative = controlnet.steered(steering, strength=strength)
        return {**size, "positive": positive, "negative": negative}

    def sample(patcher: Any, steering: Any, strength: float = 1.0, seed: int = 1) -> torch.Tensor:
        result: torch.Tensor = host.sample(patcher, seed=seed, steps=SHORT, **settings(steering, strength))
        return result

    reference = sample(model, net)
    put = functools.partial(bench.put, "controlnet")
    put(
        rel_l2_without=relative_l2(host.sample(model, steps=SHORT, **size), reference),
        eager=timed(model, settings(net)),
    )
    _compile(bench, {"unet": lambda: sample(fast_model, net), "controlnet": lambda: sample(model, fast_net)})
    counters = registry().counters
    synchronize()
    began = time.perf_counter()
    result = sample(fast_model, fast_net)
    synchronize()
    put(first_run_s=round(time.perf_counter() - began, 2), rel_l2_to_eager=relative_l2(result, reference))
    put(unet_only=timed(fast_model, settings(net)), both=timed(fast_model, settings(fast_net)))
    steered_model = _with_lora(model, lora)
    steered_fast = hook.compile_model(steered_model, hook.ModelNodeOptions(), "bench")[0]
    for name, patcher, fast, strength in (
        ("strength 0.5", model, fast_model, 0.5),
        ("LoRA", steered_model, steered_fast, 1.0),
        ("LoRA removed", model, fast_model, 1.0),
    ):
        wanted = sample(patcher, net, strength)
        found = {"rel_l2_to_eager": relative_l2(sample(fast, fast_net, strength), wanted)}
        put(**{name: {**found, "rel_l2_of_change": relative_l2(wanted, reference), **_counted(counters)}})
        bench.say(f"{name}: {bench.result['controlnet'][name]}")
    if bench.left() > RESERVE:
        _torch_compiled(bench, model, net, settings)


def _compile(bench: Bench, runs: dict[str, Any]) -> None:
    """Compile what these runs ask for into the store that the registry restores from."""
    from onegraph.graph_cache.store import Store
    from onegraph.runtime.obtain.registry import Registry
    from onegraph.runtime.policy import ANY_SPEED

    compiles = {}
    for name, run_one in runs.items():
        request = recorded(run_one)
        assert request is not None, name
        compiles[name] = Compile(name, request, Registry(Store(bench.work / "home"), policy=ANY_SPEED))
    compile_at_once(bench, compiles, bench.deadline - RESERVE)
    for name, compile_ in compiles.items():
        if compile_.refused is not None:
            raise OutOfTime(f"{name}: {compile_.refused}")
        bench.put("controlnet", **{f"{name}_compile_s": compile_.graph.entry.manifest.compile_seconds})


def _with_lora(model: Any, lora: Any) -> Any:
    import comfy.sd
    import comfy.utils

    return comfy.sd.load_lora_for_models(model, None, comfy.utils.load_torch_file(str(lora)), 1.0, 0.0)[0]


def _counted(counters: Counters) -> dict[str, int]:
    return {name: getattr(counters, name) for name in ("compiles", "restores", "compiled_calls", "eager_calls")}


def _torch_compiled(bench: Bench, model: Any, net: Any, settings: Any) -> None:
    """Core's TorchCompileModel for the UNet, and torch.compile around the ControlNet's module."""
    import torch
    from comfy_extras.nodes_torch_compile import TorchCompileModel
    from headless import host

    compiled = TorchCompileModel.execute(model, "inductor").args[0]
    steering = net.copy()
    steering.control_model = torch.compile(net.control_model)
    synchronize()
    began = time.perf_counter()
    host.sample(compiled, steps=SHORT, **settings(steering))
    synchronize()
    first = round(time.perf_counter() - began, 2)
    bench.put("controlnet", torch_compile_first_run_s=first)
    bench.put("controlnet", torch_compile=timed(compiled, settings(steering)))
    bench.say(f"torch.compile: {bench.result['controlnet']['torch_compile']}")
