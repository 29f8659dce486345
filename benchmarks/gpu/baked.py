"""Graphs that were baked on a machine without a GPU: a step beside eager and beside graphs that are compiled here.

`BAKED=FOLDER python -m benchmarks.gpu.baked --model flux --out FILE`, in an environment with ComfyUI (`COMFYUI_PATH`);
FOLDER is the graph folder in which `onegraph bake FILE --target sm_90 --comfyui PATH` put them, with an older torch or
the same. Weights are seeded random numbers, 1024x1024 pixels. Each way is a process of its own, with the graphs of no
other. One row of JSON each, and one file.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu import dits
from benchmarks.gpu.ways import ROOT, Benchmark, Row, about_graphs, result_of

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

FORMATS = {"": "", " fp8": "fp8 scaled", " int8": "int8 convrot"}
MODELS: dict[str, Any] = {f"{one}{end}": [one, kind] for one in ("flux", "z-image") for end, kind in FORMATS.items()}
MODELS["sdxl"] = ["sdxl_base", "float16, batch 2"]
WAYS = ("eager", "baked", "compiled here")
STEPS = 12
_TRIAL_S = 120


def measure(name: str, way: str, repeats: int) -> Row:
    """Sample in this process: the first step's seconds, a later one's milliseconds, what ran."""
    os.environ["ONEGRAPH_HOME"] = os.environ["BAKED"] if way == "baked" else tempfile.mkdtemp()
    row = _sdxl(way) if name == "sdxl" else _transformer(name, way)
    return {**row, "way": way} | ({} if way == "eager" else about_graphs("7"))


def _transformer(name: str, way: str) -> Row:
    model, layers = MODELS[name]
    as_there = "eager" if way == "eager" else "ours"
    row = dits.measure(model, as_there, 1024, STEPS, layers, loras=False, of_file=True)
    shutil.move(Path(os.environ["BENCH_RESULTS"]) / f"{model}-{layers}-{as_there}.pt", result_of(name, way))
    return row


def _sdxl(way: str) -> Row:
    from headless import host, models

    host.boot(cpu=False)
    host.import_pack()
    import torch

    from benchmarks.gpu.sampling import timed

    path = models.write_checkpoint("sdxl_base", result_of("sdxl", "file").with_suffix(".safetensors"), device="cuda")
    model: Any = host.load(path)
    if way != "eager":
        from onegraph.host.calls.model_hook import ModelNodeOptions, compile_model

        model = compile_model(model, ModelNodeOptions(backend="inductor"), "7")[0]
    settings = {"height": 1024, "width": 1024}
    torch.cuda.synchronize()
    began = time.perf_counter()
    first = host.sample(model, steps=2, **settings)
    spent = time.perf_counter() - began
    torch.save(first.cpu(), result_of("sdxl", way))
    row: Row = {"first_two_steps_s": round(spent, 2), **timed(model, settings)}
    if way == "baked":  # a child process has begun to try whether calls can be captured, which a server waits for
        tried_s = _tried()
        row |= {"launched_ms": row["step_ms"], "capture_tried_s": tried_s, **timed(model, settings)}
    return row


def _tried() -> float | None:
    """Seconds until it is known whether calls of this process' graph can be captured; None: it is not known."""
    from onegraph.runtime.obtain.registry import registry

    began = time.perf_counter()
    while time.perf_counter() - began < _TRIAL_S:
        if all(graph.first_use.result.captured is not None for graph in registry().graphs()):
            return round(time.perf_counter() - began, 1)
        time.sleep(0.1)
    return None


def compared(found: Any, eager: Any) -> Row:
    """How far two steps' latents are from eager's, as relative L2."""
    a, b = eager.double(), found.double()
    return {"distance": float((a - b).norm() / a.norm())}


if __name__ == "__main__":
    Benchmark("benchmarks.gpu.baked", MODELS, measure, compared).main(str(__doc__), WAYS)
