"""Block graphs beside diffusers' `compile_repeated_blocks`: `.venv/bin/python benchmarks/cpu/repeated_blocks.py`.

A small model of each class, in two processes one after the other that share the folders of graphs and of torch's
compiler: the first one compiles, the second one restores what the first left. In each: the first two calls, in which
everything is compiled; the first call at another size; the median of many calls in turns with eager. Machines are
noisy: only ratios within a run count. Prints a table and writes build/benchmarks/repeated_blocks.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

OUT = ROOT / "build" / "benchmarks"
CLASSES = ("QwenImageTransformer2DModel", "WanTransformer3DModel")
CALLS = 30


def seconds(call: Callable[[], Any]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(name: str) -> dict[str, Any]:
    """All figures of one class in this process."""
    import torch
    from support.models.diffusers_blocks import CASES, Sizes, result_of

    from onegraph.pipelines import compile_module
    from onegraph.runtime.obtain.registry import registry
    from onegraph.runtime.policy import ANY_SPEED

    registry().policy = ANY_SPEED
    torch.set_num_threads(1)
    case = CASES[name]
    usual, other = Sizes(1, 3, 32, 32, 64), Sizes(2, 2, 24, 40, 77)
    plain, ours, theirs = (case.model() for _ in range(3))
    compile_module(ours)
    theirs.compile_repeated_blocks(fullgraph=True, dynamic=True)
    first, second = case.arguments(usual), case.arguments(other)
    with torch.no_grad():
        wanted = result_of(plain(**first))
        found: dict[str, Any] = {}
        for which, model in (("block graphs", ours), ("compile_repeated_blocks", theirs)):
            started = time.perf_counter()
            model(**first)
            output = result_of(model(**first))
            found[which] = {
                "first calls s": time.perf_counter() - started,
                "another size s": seconds(lambda model=model: model(**second)),  # type: ignore[misc]
                "apart": float((output - wanted).norm() / wanted.norm()),
            }
        models = {"eager": plain, "block graphs": ours, "compile_repeated_blocks": theirs}
        times: dict[str, list[float]] = {which: [] for which in models}
        for _ in range(CALLS):
            for which, model in models.items():
                times[which].append(seconds(lambda model=model: model(**first)))  # type: ignore[misc]
    found["eager"] = {}
    for which, taken in times.items():
        found[which]["call ms"] = 1e3 * statistics.median(taken)
    return found


def _child(name: str, home: Path) -> dict[str, Any]:
    """Run this script for a class in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--part", name],
        env={**os.environ, "ONEGRAPH_HOME": str(home / "graphs"), "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print the figures as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("class", "", "first process s", "second process s", "another size s", "call ms", "apart")
    for name, processes in found.items():
        for which, row in processes["first"].items():
            again, cells = processes["second"][which], ["", "", ""]
            if which != "eager":
                cells = [
                    f"{row['first calls s']:.1f}",
                    *(f"{again[one]:.2f}" for one in ("first calls s", "another size s")),
                ]
            apart = f"{row['apart']:.0e}" if "apart" in row else ""
            table.add_row(name, which, *cells, f"{again['call ms']:.1f}", apart)
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Block graphs beside diffusers' compile_repeated_blocks.")
    parser.add_argument("--classes", nargs="+", default=CLASSES)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(measure(given.part)), flush=True)
        return
    found: dict[str, dict[str, Any]] = {}
    for name in given.classes:
        with tempfile.TemporaryDirectory() as home:
            found[name] = {which: _child(name, Path(home)) for which in ("first", "second")}
    show(found)
    OUT.mkdir(parents=True, exist_ok=True)
    written = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), **found}
    (OUT / "repeated_blocks.json").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
