"""The first prompt of a new machine: uncompiled, by graphs that are there, and by graphs of a store on the network.

    .venv/bin/python benchmarks/cpu/first_prompt.py [--trip 0.05] [--rounds 3]

The real server with a tiny SDXL-class model on this machine's CPU: UNet and VAE decoder, two graphs. Each prompt is the
first of a new process; for a store the graph folder is new, too, and each of its answers takes a round trip. Graphs
that were never used are compared with the uncompiled model first. With a store that is away, the prompt runs
uncompiled. Prints a table of medians and writes build/benchmarks/first_prompt.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

import torch  # noqa: E402
from headless import host, server, workflows  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from support.comfyui.installation import CHECKPOINT, environment_of, write_base  # noqa: E402
from support.fleet.servers import http_server  # noqa: E402
from support.fleet.stores import Publisher  # noqa: E402

from onegraph.graph_cache.first_use_results import FIRST_USE_FILE  # noqa: E402
from onegraph.graph_cache.sources.transport import STORES  # noqa: E402
from onegraph.graph_cache.store import Store  # noqa: E402
from onegraph.graph_cache.trust import trust_list  # noqa: E402
from onegraph.graph_cache.trust.publishers import Publishers  # noqa: E402

OUT = ROOT / "build" / "benchmarks"
WAYS = ("uncompiled", "graphs here", "graphs here, never used", "graphs from a store", "store away")
SIDE = 256  # pixels


def prompt(when_missing: str) -> workflows.Prompt:
    """Text to image with both nodes, one step: what comes before the first image is what counts."""
    made = workflows.without_text_encoder(workflows.load("txt2img"))
    made = workflows.with_inputs(made, "CheckpointLoaderSimple", ckpt_name=CHECKPOINT)
    made = workflows.with_inputs(made, "KSampler", steps=1)
    made = workflows.with_inputs(made, "EmptyLatentImage", width=SIDE, height=SIDE)
    made = workflows.with_inputs(made, "OneGraphCompileModel", when_missing=when_missing, backend="inductor")
    return workflows.with_compiled_vae(
        made, dynamic_resolution="any size", when_missing=when_missing, backend="inductor"
    )


def first(base: Path, environ: dict[str, str], made: workflows.Prompt) -> tuple[float, dict[str, Any]]:
    """Seconds of the first prompt of a new process, and what the process did."""
    with server.running(base, host.comfyui_path(), env=environ) as running:
        began = time.perf_counter()
        outcome = running.run(made)
        seconds = time.perf_counter() - began
        assert outcome.status == "success", outcome.error
        return seconds, running.status()


def measure(folder: Path, trip: float, rounds: int) -> list[dict[str, Any]]:
    """A row for each way."""
    write_base(folder / "publisher", {CHECKPOINT: ("tiny_sdxl", 1)})
    made_by = Store(folder / "made")
    first(folder / "publisher", environment_of(made_by.home), prompt("wait"))
    publisher = Publisher(made_by)
    (folder / "store").mkdir()
    pushed = publisher.push((folder / "store").as_uri(), *made_by.entries())
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    asked: list[str] = []

    def slow(request: Any, data: bytes | None) -> bool:
        time.sleep(trip)
        return False

    with http_server(folder / "store") as served:
        served.fault = slow
        for number in range(rounds):
            for way in WAYS:
                base = write_base(folder / f"{way} {number}", {CHECKPOINT: ("tiny_sdxl", 1)})
                home = made_by.home if way == "graphs here" else folder / f"home {way} {number}"
                if way == "graphs here, never used":
                    shutil.copytree(made_by.home, home, ignore=shutil.ignore_patterns(FIRST_USE_FILE))
                environ = environment_of(home)
                if "store" in way:
                    trust_list.add(Publishers(home), "studio", publisher.public)
                    environ[STORES] = served.url if way == "graphs from a store" else "http://127.0.0.1:9"
                served.asked.clear()
                took, status = first(base, environ, prompt("eager"))
                assert status["compiles"] == 0
                restored = [run["compiled_calls"] > 0 for run in status["runs"].values()]
                assert all(restored) == (way not in ("uncompiled", "store away")), status["runs"]
                seconds[way].append(took)
                asked = [*served.asked] if way == "graphs from a store" else asked
    size = sum(entry.manifest.bytes for entry in made_by.entries())
    return [
        {"way": way, "seconds": statistics.median(seconds[way]), "graphs": len(pushed), "bytes": size,
         "requests": len(asked) if way == "graphs from a store" else 0}
        for way in WAYS
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="The first prompt of a new machine.")
    parser.add_argument("--trip", type=float, default=0.05, help="seconds that each answer of the store takes")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.trip, options.rounds)
    table = Table("", "first prompt", "requests", title=f"a round trip takes {1e3 * options.trip:.0f} ms")
    for row in rows:
        table.add_row(row["way"], f"{row['seconds']:.2f} s", str(row["requests"] or ""))
    Console().print(table)
    OUT.mkdir(parents=True, exist_ok=True)
    facts = {"torch": torch.__version__, "python": platform.python_version(), "trip": options.trip, "rows": rows}
    (OUT / "first_prompt.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
