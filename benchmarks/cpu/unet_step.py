"""Eager against compiled, one UNet call, at several sizes: `.venv/bin/python benchmarks/cpu/unet_step.py`.

Runs ComfyUI's UNet in this process on a small SDXL-class model. Eager is ComfyUI's own forward with the attention it
picks on this machine: on the CPU a slow one that saves memory, with --pytorch-attention the fast one. Both are timed in
turns within one run, because machines are noisy; the median of `--rounds` rounds counts. Prints a table and writes
build/benchmarks/unet_step.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from headless import host, models  # noqa: E402

OUT = ROOT / "build" / "benchmarks"
SIZES = ((256, 256), (512, 512), (768, 512), (768, 768))


def milliseconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description="Eager against compiled, one UNet call.")
    parser.add_argument("--model", choices=sorted(models.UNETS), default="small_sdxl")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--pytorch-attention", action="store_true", help="eager as under ComfyUI's --use-pytorch-cross-attention"
    )
    options = parser.parse_args()
    host.boot(**({"use_pytorch_cross_attention": True} if options.pytorch_attention else {}))
    import torch
    from rich.console import Console
    from rich.table import Table

    from onegraph.common.refused import Refused
    from onegraph.graph_cache.store import Store
    from onegraph.host.calls import model_hook as hook
    from onegraph.host.calls.run import start_run
    from onegraph.host.comfyui.model_source import source_of
    from onegraph.runtime.graphs.faithfulness import relative_l2
    from onegraph.runtime.graphs.loaded_graph import LoadedGraph
    from onegraph.runtime.obtain.registry import Registry

    path = models.write_checkpoint(options.model, OUT / f"{options.model}.safetensors")
    patcher = host.load(path)
    unet = patcher.model.diffusion_model
    node = hook.ModelHook(hook.ModelNodeOptions(), None, source_of(patcher, unet))
    run = start_run(patcher, unet, "diffusion_model.")
    engine = Registry(Store(OUT / "home"))
    width_of_context = models.UNETS[options.model]["context_dim"]
    label_width = models.UNETS[options.model].get("adm_in_channels")
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for width, height in SIZES:
            given = [
                torch.randn(2, 4, height // 8, width // 8),
                torch.full((2,), 500.0),
                torch.randn(2, 77, width_of_context),
                *([torch.randn(2, label_width)] if label_width else []),
            ]
            request = node.request(unet, run, given)
            assert not isinstance(request, Refused), request.text
            graph = engine.obtain(request, "wait", lambda progress: None)
            assert isinstance(graph, LoadedGraph), graph.text
            sizes = {"batch": 2, "height": height // 8, "width": width // 8, "context": 77}

            def eager(given: list[Any] = given) -> Any:
                return unet(*given)

            def compiled(graph: LoadedGraph = graph, given: Any = given, sizes: Any = sizes) -> Any:
                return graph.call(unet, tuple(given), sizes, unet, engine.counters).output

            error = relative_l2(compiled(), eager())
            times: dict[str, list[float]] = {"eager": [], "compiled": []}
            for _ in range(options.rounds):
                times["eager"].append(milliseconds(eager))
                times["compiled"].append(milliseconds(compiled))
            medians = {name: round(statistics.median(values), 2) for name, values in times.items()}
            rows.append(
                {
                    "size": f"{width}x{height}",
                    "eager_ms": medians["eager"],
                    "compiled_ms": medians["compiled"],
                    "speedup": round(medians["eager"] / medians["compiled"], 2),
                    "rel_l2": error,
                }
            )
    report = {
        "model": options.model,
        "rounds": options.rounds,
        "eager_attention": "pytorch" if options.pytorch_attention else "ComfyUI's choice",
        "compiles": engine.counters.compiles,
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "rows": rows,
    }
    (OUT / "unet_step.json").write_text(json.dumps(report, indent=1) + "\n")
    table = Table(
        "size", "eager ms", "compiled ms", "eager / compiled", "relative L2", title=f"{options.model}, batch 2"
    )
    for row in rows:
        table.add_row(
            row["size"],
            f"{row['eager_ms']:.0f}",
            f"{row['compiled_ms']:.0f}",
            f"{row['speedup']:.2f}",
            f"{row['rel_l2']:.1e}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
