"""Time what a call of a block costs besides its graph: `.venv/bin/python benchmarks/cpu/blocks.py`.

A small model with blocks like FLUX's runs with its blocks compiled. In place of the graph's run stands one that returns
the results of the call before, so that what is left is choosing and checking: the way to the session, names, form,
options, sizes, modes, addresses of weights, putting results together. `stages` are the same steps called
one by one. `--loaders 60` loads one graph so often and prints what memory and file mappings each takes.

Prints a table and writes build/benchmarks/blocks.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

OUT = ROOT / "build" / "benchmarks"


def microseconds(call: Callable[[], object], calls: int, rounds: int) -> float:
    """The fastest round's mean of this thread's time: whatever else the machine does only ever adds to it."""
    found = []
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(calls):
            call()
        found.append(1e6 * (time.thread_time() - began) / calls)
    return min(found)


def copied(into: Sequence[Any], values: Sequence[Any]) -> None:
    """What any way of calling a block that changes its arguments must do."""
    for one, value in zip(into, values, strict=True):
        one.copy_(value)


def of_blocks(rounds: int) -> dict[str, Any]:
    """Microseconds of a call of each kind of block."""
    import block_model
    import torch

    from onegraph.graph_cache.store import Store
    from onegraph.runtime.calls.run import Run
    from onegraph.runtime.calls.session import BlockRun
    from onegraph.runtime.graphs.binding import Held
    from onegraph.runtime.guards.guard_cache import GuardCache
    from onegraph.runtime.obtain import registry as registries
    from onegraph.runtime.obtain.registry import Registry
    from onegraph.runtime.policy import ANY_SPEED

    torch.set_num_threads(1)
    model, found = block_model.model(), {}
    x, text, options = block_model.call()
    with registries.using(Registry(Store(OUT / "blocks-store"), policy=ANY_SPEED)), torch.inference_mode():
        client: Any = block_model.Client()
        run = Run(held=Held())
        blocks = BlockRun(client, run, model, GuardCache())
        calls: dict[str, tuple[Any, dict[str, Any]]] = {}

        def noting(name: str, block: Any) -> None:
            forward = type(block).forward

            def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
                calls[name] = args, kwargs
                return forward(self, *args, **kwargs)

            type(block).forward = noted
            model(x, text, options)
            type(block).forward = forward

        noting("double", model.doubles[0])
        noting("single", model.singles[0])
        for _ in range(3):
            with blocks.call():
                model(x, text, options)
        report = run.report.blocks
        if report.calls < 24:
            raise SystemExit(f"blocks run eager: {report.text()} {dict(report.eager)}")
        for loaded in registries.registry().graphs():
            loaded._checks._schedule.every = 0
            for bound in loaded._runners:
                bound.runner = Stub(bound.runner)
        for name, block in (("double", model.doubles[0]), ("single", model.singles[0])):
            args, kwargs = calls[name]
            with blocks.call():
                forward = vars(block)["forward"]
                forward(*args, **kwargs)
                found[name] = microseconds(partial(forward, *args, **kwargs), 500, rounds)
            leaves = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
            changed = leaves[: 2 if name == "double" else 1]
            found[f"{name}, copies of results"] = microseconds(
                partial(copied, changed, [torch.empty_like(one) for one in changed]), 500, rounds
            )

        def around() -> None:
            with blocks.call():
                pass

        found["around all blocks of a call"] = microseconds(around, 20, rounds)
    return found


class Stub:
    """A runner that returns what its graph did at its first call."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._output: Any = None
        self.cuda_graphs, self.reads_in_place = runner.cuda_graphs, runner.reads_in_place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def __call__(self, *inputs: Any) -> Any:
        if self._output is None:
            self._output = self._runner(*inputs)
        return self._output


def of_loaders(count: int) -> dict[str, Any]:
    """What loading one graph so often takes of memory, files and time."""
    import torch

    from onegraph.backends import get

    folders = [path.parent for path in (OUT / "blocks-store").rglob("*.aoti")]
    if not folders:
        raise SystemExit("there is no graph to load: run without --loaders first")
    loader: Any = get("inductor").loader(folders[0], torch.device("cpu"))  # type: ignore[attr-defined]
    loaders, memory, maps, files, seconds = [], [], [], [], []
    for _ in range(count):
        began = time.perf_counter()
        loaders.append(loader())
        seconds.append(time.perf_counter() - began)
        lines = Path("/proc/self/maps").read_text().splitlines()
        of_graphs = [line for line in lines if "model.so" in line or "wrapper.so" in line or "onegraph" in line]
        memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        maps.append(len(of_graphs))
        files.append(len({line.split(maxsplit=5)[-1] for line in of_graphs}))
    return {
        "loaders": count,
        "first_ms": round(1e3 * seconds[0], 2),
        "each_further_ms": round(1e3 * statistics.median(seconds[1:]), 3),
        "kib_each_further": round((memory[-1] - memory[0]) / 1024 / (count - 1), 1),
        "mappings_first_last": [maps[0], maps[-1]],
        "files_first_last": [files[0], files[-1]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what a call of a block costs besides its graph.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--loaders", type=int, default=0)
    options = parser.parse_args()
    import torch

    OUT.mkdir(parents=True, exist_ok=True)
    found = of_loaders(options.loaders) if options.loaders else of_blocks(options.rounds)
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:{width}}  {value if not isinstance(value, float) else round(value, 1)}")
    facts = {"torch": torch.__version__, "python": platform.python_version(), "processor": platform.processor()}
    name = "block-loaders" if options.loaders else "blocks"
    (OUT / f"{name}.json").write_text(json.dumps({**facts, "microseconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
