"""One model in several ways, each in a process of its own: the rows, as they come and in a file."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("eager", "ours", "ours, restored", "torch.compile by block")  # the third with what the second has stored
Row = dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """What is measured.

    Attributes:
        module: the benchmark's own.
        models: by name, what the file shall tell of them.
        measure: gives the row of a model, a way and a number of repeats, in a process of its own. It may save what was
            computed as `result_of(model, way)`.
        compared: gives what a row tells beside eager's, of their results.
    """

    module: str
    models: dict[str, Any]
    measure: Callable[[str, str, int], Row]
    compared: Callable[[Any, Any], Row]

    def main(self, description: str, ways: Sequence[str] = WAYS) -> None:
        """Run as a command."""
        parser = argparse.ArgumentParser(description=description.partition("\n")[0])
        parser.add_argument("--model", choices=self.models, default=next(iter(self.models)))
        parser.add_argument("--repeats", type=int, default=3)
        parser.add_argument("--ways", default=";".join(ways), help="separated by semicolons")
        parser.add_argument("--work", type=Path, default=ROOT / "build" / "benchmarks")
        parser.add_argument("--out", type=Path)
        parser.add_argument("--one", help=argparse.SUPPRESS)
        given = parser.parse_args()
        os.environ["BENCH_RESULTS"] = str(given.work)
        os.environ.setdefault("ONEGRAPH_HOME", str(given.work / "graphs"))
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(given.work / "torch-compile"))
        given.work.mkdir(parents=True, exist_ok=True)
        if given.one:
            print(json.dumps(self.measure(given.model, given.one, given.repeats)))
            return
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by `timeout`: the process of a way is ended, too
        rows: list[Row] = []
        for way in given.ways.split(";"):
            command = [sys.executable, "-m", self.module, "--model", given.model, "--one", way]
            command += ["--repeats", str(given.repeats), "--work", str(given.work)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                print(f"{way}: {ended.stderr[-1500:]}", flush=True)
                continue
            row = json.loads(ended.stdout.strip().splitlines()[-1])
            eager, found = result_of(given.model, "eager"), result_of(given.model, way)
            if way != "eager" and eager.is_file() and found.is_file():
                row |= self._differences(found, eager)
            rows.append(row)
            print(json.dumps(row), flush=True)
            if given.out:
                about = {"model": given.model, "what": self.models[given.model], "rows": rows}
                given.out.write_text(json.dumps(about, indent=1))

    def _differences(self, found: Path, eager: Path) -> Row:
        import torch

        return self.compared(torch.load(found), torch.load(eager))


def result_of(model: str, way: str) -> Path:
    """The file of what one way computed."""
    return Path(os.environ["BENCH_RESULTS"]) / f"{model}-{way}.pt"


def about_graphs(node: str) -> Row:
    """What a row tells of this process' graphs. `node`: by whose name the last run is known."""
    from onegraph.host.show import status
    from onegraph.runtime.obtain.registry import registry

    counters = registry().counters
    text = status.last_runs[node].to_json()["text"] if node in status.last_runs else ""
    row: Row = {"text": text, "compiles": counters.compiles, "compiled_calls": counters.compiled_calls}
    return row | {"eager": {str(reason): calls for reason, calls in counters.reasons.items()}}
