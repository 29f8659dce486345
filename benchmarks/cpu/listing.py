"""Time commands on a store of thousands of graphs: `.venv/bin/python benchmarks/cpu/listing.py --entries 5000`.

Fills a store with signed entries whose manifests are as large as those of SDXL's UNet, as `store.py` does, and measures
`onegraph ls`, `ls --json`, `stats` and `prune --dry-run` from their start to their end, in processes of their own: the
first one reads all manifests, the others what it left. Also a publish that makes room. Files are in the page cache.
Prints a table and writes build/benchmarks/listing.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import store as stores

COMMANDS = (["ls"], ["ls", "--sort", "used"], ["ls", "--json"], ["stats"], ["prune", "--dry-run"])


def timed(arguments: list[str], home: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a command."""
    environment = {**os.environ, "PYTHONPATH": str(stores.OUT / "listing" / "checkout"), "ONEGRAPH_HOME": str(home)}
    program = "from onegraph.cli import main; main()"
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments}: exit code {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime


def publish_one(home: Path) -> float:
    """Seconds of a publish."""
    from onegraph.graph_cache.publish import NewEntry
    from onegraph.graph_cache.store import Store

    cache = Store(home)
    new = NewEntry("512x512", ("graph.aoti",), (), 40.0, "0.1.0")
    with cache.staging() as staged:
        (staged / "graph.aoti").write_bytes(bytes(4096))
        began = time.perf_counter()
        cache.publish(stores.key(10**6, "unet"), staged, new)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Time commands on a store of thousands of graphs.")
    parser.add_argument("--entries", type=int, default=5000)
    parser.add_argument("--weights", type=int, default=1680, help="that each manifest describes")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    work = stores.OUT / "listing"
    shutil.rmtree(work, ignore_errors=True)
    (work / "checkout").mkdir(parents=True)
    (work / "checkout" / "onegraph").symlink_to(stores.ROOT, target_is_directory=True)
    sys.path.insert(0, str(work / "checkout"))
    filled = stores.Filled(work / "store", options.entries, 3, options.weights)
    stores.fill(filled)
    rows = []
    seconds, cpu = timed(["ls"], filled.home)
    rows.append({"command": "ls, the first", "seconds": round(seconds, 2), "cpu": round(cpu, 2)})
    for command in COMMANDS:
        found = [timed(command, filled.home) for _ in range(options.rounds)]
        wall, used = (round(statistics.median(column), 2) for column in zip(*found, strict=True))
        rows.append({"command": " ".join(command), "seconds": wall, "cpu": used})
    rows.append({"command": "a publish", "seconds": round(publish_one(filled.home), 2), "cpu": 0})
    shutil.rmtree(work)
    for row in rows:
        print(f"{row['command']:20} {row['seconds']:6.2f} s, CPU {row['cpu']:.2f} s")
    machine = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
    (stores.OUT / "listing.json").write_text(
        json.dumps({**machine, "entries": options.entries, "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
