"""A publisher, a worker, and a remote store between them, of graphs made of a few bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from onegraph.common.reasons import Reason, StoreBadAddress
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.lookup import Differs, no_objection
from onegraph.graph_cache.manifest import CodeRecord
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources import pushing, transport
from onegraph.graph_cache.sources.pushing import Pusher
from onegraph.graph_cache.sources.remote import Layers
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.sources.transport import Remote
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import ed25519, key_file
from support.store.entries import key, new_entry, publish, trust

WAIT = 60.0  # seconds, which no test waits out


def remote_of(url: str) -> Remote:
    """Open a store by its address."""
    found = transport.parse(url)
    assert not isinstance(found, StoreBadAddress)
    return Remote(found, 10.0)


@dataclass(frozen=True)
class Publisher:
    """Who makes graphs: a user with a store and a key."""

    store: Store

    @property
    def private(self) -> bytes:
        return key_file.obtain(self.store.home / "publisher.key")

    @property
    def public(self) -> str:
        return ed25519.public_key(self.private)

    def make(self, wanted: GraphKey | None = None, content: bytes = b"code", version: str = "") -> Entry:
        """A graph of a few bytes in the publisher's own store, captured from some version of the host's code."""
        code = CodeRecord(python="3.10", functions={"host:f": (version, version)}, references={}, methods={})
        new = new_entry(code=code if version else None)
        return publish(self.store, ModelSource(None, "666666666666"), wanted, content, new)

    def pusher(self, url: str) -> Pusher:
        return Pusher(remote_of(url), self.private, self.store.home)

    def push(self, url: str, *entries: Entry) -> list[str]:
        """Push entries; what was done with each."""
        return [done.did for done in pushing.push(self.store, entries, self.pusher(url))]

    def withdraw(self, url: str, *entries: Entry) -> int:
        """Take entries back; how many are so far."""
        return len(self.pusher(url).withdraw(blake3(entry.text).hexdigest() for entry in entries))


@dataclass(frozen=True)
class Worker:
    """Who uses graphs: a user without any, and the stores that it knows."""

    store: Store

    @classmethod
    def at(cls, home: Path, *urls: str, trusts: Sequence[Publisher] = (), wait: float = WAIT) -> Worker:
        """A process of a worker."""
        store = Store(home)
        for number, publisher in enumerate(trusts):
            trust(store, publisher.public, f"fleet{number or ''}")
        store.remotes = Layers(home, [transport.parse(url) for url in urls], wait)
        return cls(store)

    def fetch(self, wanted: GraphKey | None = None, differs: Differs = no_objection) -> Taken | Reason | None:
        """Ask the stores as a run does whose look-up missed."""
        return self.store.take(wanted or key(), ModelSource(None, "0123456789ab"), (), differs)

    def files(self) -> Iterator[str]:
        """What is below the graph folder."""
        for path in sorted(self.store.home.rglob("*")):
            if path.is_file():
                yield path.relative_to(self.store.home).as_posix()


def without_time(worker: Worker) -> None:
    """Forget what a worker's process learnt of its stores, as if an hour had passed."""
    for layer in worker.store.remotes._layers:
        layer.missed.clear()
        layer.withdrawn.clear()
        layer.logs.clear()
        layer.resting = 0.0
