"""Parts of `benchmarks/gpu.py` that need a fresh process: taking up a kept graph, and torch.compile to compare with."""

from __future__ import annotations

import time
from typing import Any

from gpu_common import Bench, median_ms, synchronize
from gpu_graphs import Unet, Vae


def restore(bench: Bench) -> dict[str, Any]:
    """Weights loaded, nothing run yet: find, check, load, bind and the first call, of a graph that is kept."""
    from onegraph.compiler.engine import Engine
    from onegraph.compiler.shapes import Refused
    from onegraph.graph_cache.store import Store

    bench.result = {}
    found: dict[str, Any] = {}
    for part in (Unet(bench), Vae(bench)):
        kind = "" if isinstance(part, Unet) else "vae_"
        for name, compile_ in part.compiles.items():
            request = compile_.request
            engine = Engine(Store(bench.work / "home"))
            synchronize()
            started = time.perf_counter()
            graph = engine.obtain(request, "eager", lambda progress: None)
            obtained = time.perf_counter()
            if isinstance(graph, Refused):
                found[f"{kind}restore_{name}_refused"] = graph.reason
                continue
            refused = graph.rebind(part.module)
            bound = time.perf_counter()
            if refused is not None:
                found[f"{kind}restore_{name}_refused"] = refused.reason
                continue
            graph.call(part.module, tuple(part.given), part.sizes, part.eager, engine.counters)
            launched = time.perf_counter()
            synchronize()
            ended = time.perf_counter()
            graph.call(part.module, tuple(part.given), part.sizes, part.eager, engine.counters)
            synchronize()
            found[f"{kind}restore_{name}"] = {
                "restore_s": round(ended - started, 4),
                "find_check_load_s": round(obtained - started, 4),
                "bind_s": round(bound - obtained, 4),
                "first_call_s": round(ended - bound, 4),
                "first_call_returned_after_s": round(launched - bound, 4),
                "second_call_s": round(time.perf_counter() - ended, 4),
                "first_use_known": graph.outcome.compiled_ms is not None,
            }
    return found


def torch_compile(bench: Bench) -> dict[str, Any]:
    """What core's TorchCompileModel gives: first call and steady state in this process's caches."""
    import torch

    bench.result = {}
    part = Unet(bench)
    part.eager()  # so that only the compile is in the figure
    synchronize()
    compiled: Any = torch.compile(part.module, backend="inductor")

    def call() -> Any:
        return compiled(*part.given, control=None, transformer_options={})

    started = time.perf_counter()
    with torch.inference_mode():
        call()
        synchronize()
        first = time.perf_counter() - started
        steady = median_ms({"call": call}, bench.rounds)["call"]
        error = part.relative_l2(call(), part.eager())
    return {"first_call_s": round(first, 2), "ms": steady, "rel_l2_to_eager": error}
