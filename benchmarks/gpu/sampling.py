"""The sampling section of `benchmarks/gpu`: ComfyUI's own sampling with the node's hook against without."""

from __future__ import annotations

import time
from typing import Any

from .common import synchronize
from .component import Component

SHORT, LONG = 4, 30  # steps; their difference is free of what a run costs by itself


def timed(model: Any, settings: dict[str, Any]) -> dict[str, float]:
    """A short and a long run: the long one's seconds, and milliseconds for each further step."""
    from headless import host

    spent = []
    for steps in (SHORT, LONG):
        synchronize()
        started = time.perf_counter()
        host.sample(model, steps=steps, **settings)
        synchronize()
        spent.append(time.perf_counter() - started)
    return {
        f"{LONG}_steps_s": round(spent[1], 4),
        "step_ms": round(1e3 * (spent[1] - spent[0]) / (LONG - SHORT), 3),
    }


def compare(component: Component, patcher: Any, settings: dict[str, Any]) -> None:
    """Latents compared and runs timed: eager, and each of the cached graphs, as the node uses them.

    Args:
        patcher: ComfyUI's MODEL of the component.
        settings: of each sampling, as `headless.host.sample` takes them.
    """
    from headless import host

    from onegraph.host.calls import model_hook as hook
    from onegraph.host.show import status
    from onegraph.runtime.obtain.registry import registry

    plain = host.sample(patcher, steps=SHORT, **settings)
    other = host.sample(patcher, seed=2, steps=SHORT, **settings)
    found: dict[str, Any] = {
        "rel_l2_of_another_seed": component.relative_l2(other, plain),
        "eager": timed(patcher, settings),
    }
    for name, shapes in (("any_size", "any size"), ("exact", "exact")):
        if name not in component.compiles:
            continue
        options = hook.ModelNodeOptions(shapes=shapes, when_missing="eager")  # type: ignore[arg-type]
        compiled, said = hook.compile_model(patcher, options, "bench")
        first = host.sample(compiled, steps=SHORT, **settings)
        second = host.sample(compiled, steps=SHORT, **settings)
        found[name] = {
            "said": said,
            "rel_l2_to_eager": component.relative_l2(first, plain),
            "same_again": bool((first == second).all()),
            **timed(compiled, settings),
            "report": status.last_runs["bench"].to_json(),
        }
    found["eager_again"] = timed(patcher, settings)
    counters = registry().counters
    found |= {"compiled_calls": counters.compiled_calls, "eager_calls": counters.eager_calls}
    component.bench.say(f"{component.name} sampling: {found}")
    component.put(sampling=found)
