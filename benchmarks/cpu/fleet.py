"""Simulate a fleet that starts at once: `.venv/bin/python benchmarks/cpu/fleet.py --workers 1000`.

Each worker is the real client code, `Layers.take`, with an empty graph folder of its own: it asks for records, reads
manifests and files, verifies signatures and digests, and keeps the graphs. Only the network and the clock are made up.
A store's uplink is shared equally by all that is on its way, a worker's own link bounds what it gets, and each request
takes a round trip first. Caches stand for a CDN's edge or a node's own copy: each fetches a file once, whoever asks
for it meanwhile waits for the same bytes, and then gets them over the cache's link. Events are in an order that depends
on nothing else, so that the same arguments give the same table.

The graphs' files are a thousandth of the size that the network counts. What a worker computes takes no time. Prints a
table and writes build/benchmarks/fleet.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import statistics
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from network import SCALE, Link, Network, Source

from onegraph.common.reasons import StoreTooSlow
from onegraph.common.tensor_meta import TensorMeta
from onegraph.graph_cache.key import GraphKey, key_digest
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.publish import NewEntry
from onegraph.graph_cache.sources import pushing, transport
from onegraph.graph_cache.sources import remote as remotes
from onegraph.graph_cache.sources.pushing import Pusher
from onegraph.graph_cache.sources.remote import Layers
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.sources.transport import Patience, Remote, StoreError
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import ed25519, key_file, trust_list
from onegraph.graph_cache.trust.publishers import Publishers

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "benchmarks"
GRAPHS = {"unet": 9_600_000, "vae_decoder": 5_200_000}  # bytes, as of SDXL's
SPREAD = 0.5  # seconds within which all workers ask for their first graph
_CONSTANTS = (TensorMeta(name="unet.out.bias", shape=(4,), stride=(1,), dtype="float32"),)


@dataclass(frozen=True)
class Scenario:
    """A network.

    Attributes:
        uplink, link: MB/s of the store for all, and of each worker.
        trip: seconds of a round trip to the store.
        per_cache: workers of one cache; 0: they read the store itself.
        cache_uplink, cache_trip: of each cache for its workers.
        wait: ONEGRAPH_STORES_WAIT.
    """

    name: str
    uplink: float
    link: float = 1250.0
    trip: float = 0.03
    per_cache: int = 0
    cache_uplink: float = 3125.0
    cache_trip: float = 0.002
    wait: float = transport.DEFAULT_WAIT


SCENARIOS = (
    Scenario("one server, 1 Gbit/s", 125.0),
    Scenario("one server, 1 Gbit/s, workers wait 120 s", 125.0, wait=120.0),
    Scenario("one server, 10 Gbit/s", 1250.0),
    Scenario("one server, 10 Gbit/s, a cache for 50", 1250.0, per_cache=50),
    Scenario("object store, 400 Gbit/s", 50_000.0),
)


class Worker:
    """One worker's process, in a thread that runs only while the network stands still."""

    def __init__(self, number: int, home: Path, source: Source, wanted: list[GraphKey], wait: float) -> None:
        self.number, self.home, self.source, self.wanted, self.wait = number, home, source, wanted, wait
        self.ready = 0.0
        self.requests = 0
        self.bytes = 0
        self.missed: list[str] = []
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()
        self._step()

    def _step(self) -> None:
        """Let the worker go on until it waits for the network, or is done."""
        self._mine.release()
        self._theirs.acquire()

    def _run(self) -> None:
        self._mine.acquire()
        try:
            store = Store(self.home)
            store.remotes = Layers(self.home, [transport.parse("http://store")], self.wait)
            for layer in store.remotes._layers:
                assert layer.remote is not None
                layer.remote = _SimulatedRemote(layer.remote, self)
            for number, key in enumerate(self.wanted):
                found = store.take(key, ModelSource(None, f"{number:012x}"))
                if not isinstance(found, Taken):
                    self.missed.append(getattr(found, "code", "no_graph"))
            self.ready = self.source.link.network.now
        finally:
            shutil.rmtree(self.home, ignore_errors=True)
            self._theirs.release()

    def read(self, name: str, patience: Patience) -> bytes | None:
        """Ask the network, and give up when the client's patience is over."""
        network, answer = self.source.link.network, list[bytes | None]()
        over = False

        def came(data: bytes | None) -> None:
            nonlocal over
            if not over:
                over = True
                answer.append(data)
                self._step()

        def late() -> None:
            nonlocal over
            if not over:
                over = True
                give_up()
                self._step()

        give_up = self.source.get(name, came)
        network.at(network.now + patience.left, late)
        self._theirs.release()
        self._mine.acquire()
        self.requests += 1
        if not answer:
            raise StoreError(StoreTooSlow("http://store", patience.seconds))
        self.bytes += len(answer[0] or b"")
        return answer[0]


class _SimulatedRemote(Remote):
    """The store as a worker's client sees it."""

    def __init__(self, real: Remote, worker: Worker) -> None:
        super().__init__(real.address, 1.0)
        self._worker = worker

    def connect(self) -> None:
        pass

    def read(self, name: str, most: int, patience: Patience) -> bytes | None:
        if name.startswith("objects/") and patience.seconds < 1e6:
            patience.allow(most * (SCALE - 1) if most < 100_000 else 0)  # as its whole size would
        return self._worker.read(name, patience)


class _Clock:
    """What the client's modules take for `time`."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def monotonic(self) -> float:
        return self._network.now

    perf_counter = monotonic
    time = monotonic


def publish(folder: Path, remote: Path) -> tuple[str, list[GraphKey]]:
    """Make a publisher's store with SDXL's graphs; the public key, and the keys of the graphs."""
    store, keys = Store(folder), []
    for component, size in GRAPHS.items():
        key = GraphKey(component, "a" * 32, {"dims": {}}, "float16", "inductor", {"device": "cuda", "cpu": "sm_90"})
        with store.staging() as staged:
            (staged / "graph.aoti").write_bytes(random.Random(component).randbytes(size // SCALE))
            new = NewEntry("any size", ("graph.aoti",), _CONSTANTS, 60.0, "0.1.0")
            store.publish(key, staged, new)
        keys.append(key)
    private = key_file.obtain(folder / "publisher.key")
    where = transport.parse(f"file://{remote}")
    assert isinstance(where, transport.Address)
    done = [*pushing.push(store, store.entries(), Pusher(Remote(where, 60.0), private, folder))]
    assert [one.did for one in done] == ["pushed"] * len(GRAPHS)
    return ed25519.public_key(private), keys


def simulate(scenario: Scenario, workers: int, work: Path, public: str, keys: list[GraphKey]) -> Row:
    """Start all workers of a scenario, and let the network run until nothing is under way."""
    network, chance = Network(), random.Random(7)
    clock: Any = _Clock(network)
    store = Source(work / "remote", Link(network, scenario.uplink, scenario.link), scenario.trip)
    caches = [
        Source(work / "remote", Link(network, scenario.cache_uplink, scenario.link), scenario.cache_trip, store)
        for _ in range(-(-workers // scenario.per_cache) if scenario.per_cache else 0)
    ]
    fleet = []
    before = transport.time, remotes.time
    transport.time = remotes.time = clock
    try:
        for number in range(workers):
            home = work / "homes" / str(number)
            assert trust_list.add(Publishers(home), "fleet", public) is None
            source = caches[number // scenario.per_cache] if caches else store
            worker = Worker(number, home, source, keys, scenario.wait)
            fleet.append(worker)
            network.at(chance.random() * SPREAD, worker.start)
        network.run()
    finally:
        transport.time, remotes.time = before
    ready = sorted(worker.ready for worker in fleet if not worker.missed)
    cuts = statistics.quantiles(ready, n=100) if len(ready) > 1 else [*ready, *ready] * 50
    given = sum(source.link.bytes for source in caches or [store]) / 1e6 / workers
    return Row(
        scenario=scenario.name,
        workers=workers,
        requests=fleet[0].requests,
        megabytes=round(given, 2),
        store_requests=store.link.requests,
        store_megabytes=round(store.link.bytes / 1e6),
        p50=round(cuts[49], 2) if ready else None,
        p99=round(cuts[98], 2) if ready else None,
        without=len(fleet) - len(ready),
    )


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        requests, megabytes: of each worker.
        store_requests, store_megabytes: of all at the store.
        p50, p99: seconds until all graphs of a worker are here.
        without: workers that gave up waiting.
    """

    scenario: str
    workers: int
    requests: int
    megabytes: float
    store_requests: int
    store_megabytes: int
    p50: float | None
    p99: float | None
    without: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 1000])
    options = parser.parse_args()
    os.environ["ONEGRAPH_DISK_BUDGET"] = "0"
    logging.getLogger("onegraph").setLevel(logging.ERROR)  # each store that is slow would be a line
    memory = Path("/dev/shm")
    rows = []
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        work = Path(folder)
        public, keys = publish(work / "publisher", work / "remote")
        assert key_digest(keys[0].fields())
        for workers in options.workers:
            for scenario in SCENARIOS:
                rows.append(simulate(scenario, workers, work, public, keys))
                print(rows[-1], flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "fleet.json").write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1))
    show(rows)


def show(rows: list[Row]) -> None:
    """Print the table as docs/fleet.md has it."""
    print("| store | workers | requests, MB of each | at the store: requests, GB | p50 | p99 | gave up |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        times = [f"{one:.1f} s" if one is not None else "-" for one in (row.p50, row.p99)]
        print(
            f"| {row.scenario} | {row.workers:,} | {row.requests}, {row.megabytes:.0f} | {row.store_requests:,}, "
            f"{row.store_megabytes / 1000:.2f} | {times[0]} | {times[1]} | {row.without} |"
        )


if __name__ == "__main__":
    main()
