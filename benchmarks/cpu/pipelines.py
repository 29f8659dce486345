"""A small pipeline saved and loaded: `.venv/bin/python benchmarks/cpu/pipelines.py`.

One process compiles and saves, a fresh one loads; then ten sizes and many runs, watching memory. Restoring is from the
call of load_pipe's component to its first result, loading, binding and that call included. Machines are noisy: only
ratios within a run count. Prints a table and writes build/benchmarks/pipelines.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

OUT = ROOT / "build" / "benchmarks"
KINDS = ("sd", "sdxl", "flux")
SIZES = [(64 + 8 * number, 160 - 8 * number) for number in range(10)]


def compile_and_save(kind: str, folder: Path) -> dict[str, Any]:
    """Compile a pipeline at its usual size, and save it."""
    from support.models import pipes

    from onegraph.pipelines import compile_pipe, save_pipe

    pipe = compile_pipe(getattr(pipes, kind)())
    pipes.image(pipe)
    save_pipe(pipe, folder)
    return {one.name: one.compile_s for one in pipe.onegraph.report().components if one.compiled_calls}


def load(kind: str, folder: Path) -> dict[str, Any]:
    """Load it, and draw at the saved size and at another, each time as a fresh process does."""
    from support.models import pipes

    from onegraph.graph_cache.store import Store
    from onegraph.pipelines import load_pipe
    from onegraph.runtime.obtain.registry import Registry, using
    from onegraph.runtime.policy import ANY_SPEED

    found: dict[str, Any] = {"compiles": 0}
    for name, size in (("saved", 64), ("another", 96)):
        with using(Registry(Store(), policy=ANY_SPEED)) as registry:
            pipe = load_pipe(getattr(pipes, kind)(), folder)
            pipes.image(pipe, height=size, width=size)
            report = pipe.onegraph.report()
            found[name] = {one.name: one.restore_s for one in report.components if one.restore_s is not None}
            assert registry is not None
            found["compiles"] += registry.counters.compiles
    return found


def watch_memory(kind: str, folder: Path, runs: int) -> dict[str, Any]:
    """Draw at ten sizes, then many times at two of them."""
    from support.models import pipes

    from onegraph.pipelines import load_pipe
    from onegraph.runtime.obtain.registry import registry
    from onegraph.runtime.policy import ANY_SPEED

    registry().policy = ANY_SPEED
    pipe = load_pipe(getattr(pipes, kind)(), folder)
    memory = []
    for height, width in SIZES:
        pipes.image(pipe, height=height, width=width)
        memory.append(pipes.resident_bytes())
    found: dict[str, Any] = {"two sizes": memory[1], "ten sizes": memory[-1]}
    for number in range(runs):
        pipes.image(pipe, seed=number, height=64 + 32 * (number % 2))
        if number == 9:
            found["ten runs"] = pipes.resident_bytes()
    found[f"{runs} runs"] = pipes.resident_bytes()
    return {"memory": found, "eager calls": registry().counters.eager_calls}


PARTS = {"compile": compile_and_save, "load": load}


def _child(part: str, kind: str, folder: Path, *more: str, home: Path) -> dict[str, Any]:
    """Run a part of this script in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--part", part, kind, str(folder), *more],
        env={**os.environ, "ONEGRAPH_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(kind: str, runs: int) -> dict[str, Any]:
    """All figures of one kind of pipeline."""
    with tempfile.TemporaryDirectory() as scratch:
        home, folder = Path(scratch) / "home", Path(scratch) / "saved"
        compiled = _child("compile", kind, folder, home=home)
        loaded = _child("load", kind, folder, home=home)
        memory = _child("memory", kind, folder, str(runs), home=home)
    return {"compile": compiled, **loaded, **memory}


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print the figures as tables."""
    from rich.console import Console
    from rich.table import Table

    table = Table("pipeline", "component", "compile s", "restore s", "at another size", "compile / restore")
    for kind, row in found.items():
        for name, seconds in row["compile"].items():
            saved, another = row["saved"][name], row["another"][name]
            times = f"{seconds / saved:.0f}x, {seconds / another:.0f}x"
            table.add_row(kind, name, f"{seconds:.1f}", f"{saved:.2f}", f"{another:.2f}", times)
    sizes = Table("pipeline", "compiles after loading", "eager calls", *next(iter(found.values()))["memory"])
    for kind, row in found.items():
        memory = (f"{size / 2**20:.0f} MiB" for size in row["memory"].values())
        sizes.add_row(kind, str(row["compiles"]), str(row["eager calls"]), *memory)
    console = Console()
    console.print(table)
    console.print(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description="A pipeline compiled and saved, then loaded in a fresh process.")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["sd"])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        part, kind, folder, *more = given.part
        found = watch_memory(kind, Path(folder), int(more[0])) if more else PARTS[part](kind, Path(folder))
        print(json.dumps(found), flush=True)
        return
    found = {kind: measure(kind, given.runs) for kind in given.kinds}
    show(found)
    OUT.mkdir(parents=True, exist_ok=True)
    written = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), **found}
    (OUT / "pipelines.json").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
