"""What `benchmarks/gpu` measures in fresh processes: loading the cached graphs, and torch.compile to compare with.

Each function is a child process's work and returns what the last line of its output is to be.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from .common import Bench, median_ms, synchronize
from .component import Component
from .graphs import Unet, components
from .sampling import timed


def _start_libraries(bench: Bench) -> float:
    """Seconds that any first convolution and matrix product cost a process, compiled or not."""
    import torch

    dtype = torch.float16 if bench.device == "cuda" else torch.float32
    synchronize()
    started = time.perf_counter()
    x = torch.randn(1, 64, 32, 32, device=bench.device, dtype=dtype)
    torch.nn.functional.conv2d(x, torch.randn(64, 64, 3, 3, device=bench.device, dtype=dtype))
    torch.mm(x[0, 0], x[0, 1])
    synchronize()
    return round(time.perf_counter() - started, 4)


def _restore(component: Component, name: str) -> dict[str, Any]:
    """Time finding, checking, loading and binding a cached graph, and its first call; the model has not run yet."""
    from onegraph.common.refused import Refused

    compile_ = component.compiles[name]
    synchronize()
    started = time.perf_counter()
    graph = compile_.engine.obtain(compile_.request, "eager", lambda progress: None)
    obtained = time.perf_counter()
    if isinstance(graph, Refused):
        return {"refused": graph.text}
    compile_.graph = graph
    call = component.call(name, component.given, component.main)
    call()
    synchronize()
    ended = time.perf_counter()
    call()
    synchronize()
    return {
        "restore_s": round(ended - started, 4),
        "find_check_load_s": round(obtained - started, 4),
        "bind_and_first_call_s": round(ended - obtained, 4),
        "second_call_s": round(time.perf_counter() - ended, 4),
        "first_use_known": graph.first_use.result.compiled_ms is not None,
        "compiles": compile_.engine.counters.compiles,
    }


def restore(bench: Bench) -> dict[str, Any]:
    """All graphs for any size one after the other, as a workflow restores them, then those for one size."""
    bench.result = {}
    every = components(bench, ["unet", "refiner", "vae"])
    libraries_s = _start_libraries(bench)
    found = {
        component.key: {"any_size": _restore(component, "any_size")}
        for component in every
        if "any_size" in component.compiles
    }
    for component in every:
        if "exact" in component.compiles:
            found[component.key]["exact"] = _restore(component, "exact")
    return {"libraries_s": libraries_s, "parts": found}


def preloaded(bench: Bench) -> dict[str, Any]:
    """The same for graphs for any size that a thread has loaded before, as it does while the host reads weights."""
    bench.result = {}
    every = [
        component for component in components(bench, ["unet", "refiner", "vae"]) if "any_size" in component.compiles
    ]
    libraries_s = _start_libraries(bench)
    found: dict[str, Any] = {}
    for component in every:
        compile_ = component.compiles["any_size"]
        started = time.perf_counter()
        thread = threading.Thread(target=compile_.engine.preloads.run, args=(compile_.request, 0))
        thread.start()
        thread.join()
        ahead = {"ahead_s": round(time.perf_counter() - started, 4), "preloads": compile_.engine.counters.preloads}
        found[component.key] = {"any_size": {**ahead, **_restore(component, "any_size")}}
    return {"libraries_s": libraries_s, "parts": found}


def _torch_compile(bench: Bench, model: str) -> dict[str, Any]:
    """First call and steady state in this process's caches."""
    import torch

    bench.result = {}
    component = Unet(bench, model)
    component.eager()  # so that only the compile is in the figure
    synchronize()
    compiled: Any = torch.compile(component.module, backend="inductor")

    def call() -> Any:
        return compiled(*component.given, control=None, transformer_options={})

    started = time.perf_counter()
    call()
    synchronize()
    first = time.perf_counter() - started
    steady = median_ms({"call": call}, bench.rounds)["call"]
    return {
        "first_call_s": round(first, 2),
        "ms": steady,
        "rel_l2_to_eager": component.relative_l2(call(), component.eager()),
    }


def torch_compile(bench: Bench) -> dict[str, Any]:
    return _torch_compile(bench, bench.model)


def torch_compile_refiner(bench: Bench) -> dict[str, Any]:
    return _torch_compile(bench, bench.refiner)


def core_node(bench: Bench) -> dict[str, Any]:
    """Core's TorchCompileModel in ComfyUI's sampling; the section before has filled the compiler's caches."""
    from comfy_extras.nodes_torch_compile import TorchCompileModel
    from headless import host

    bench.result = {}
    component = Unet(bench, bench.model)
    plain = host.sample(component.patcher, steps=4, **component.settings)
    model = TorchCompileModel.execute(component.patcher, "inductor").args[0]
    synchronize()
    started = time.perf_counter()
    result = host.sample(model, steps=4, **component.settings)
    synchronize()
    first = round(time.perf_counter() - started, 2)
    found = {"first_4_steps_s": first, "rel_l2_to_eager": component.relative_l2(result, plain)}
    return {**found, **timed(model, component.settings)}
