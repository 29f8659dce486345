"""Remote stores as a source of graphs: each is verified while it is fetched, and found in the home ever after.

1. The record of a trusted publisher for the key is one request. It is parsed once its signature is found right.
2. The publisher's log, one more request, has a line for the graph, and goes on from what this user saw of it before.
3. The manifest is that of its digest, signed by the same publisher, for the very key that was asked for.
4. The files go into a folder that is closed to others, each compared with the size and digest in the manifest.

Nothing is asked for by a name that the store gave: names are made of digests that were signed. A store that is slow,
gone or lying costs one bounded wait, and is then left alone for a while. One look-up gives one reason.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from ...common import reasons
from ...common.errors import in_brief
from ...common.log import logger
from ...common.reasons import Reason
from ..entry import Entry
from ..home import Home, SignedGraph, equals_one
from ..integrity import differs
from ..key import key_digest
from ..manifest import MANIFEST_FILE, FileRecord
from ..trust import ed25519, withdrawals
from ..trust.publishers import Publishers, PublisherSignature
from . import published_log, records, transport
from .published_log import Log
from .records import Index, Publisher, Record, RemoteGraph
from .source import Taken, Wanted, verify
from .transport import Address, Patience, Remote, StoreError

log = logger("graph_cache")

FIRST_REST, LONGEST_REST = 60.0, 600.0  # seconds in which a store that failed is not asked; doubled each time
_MISS_SECONDS = 60.0  # in which a store is not asked again for what it did not have
_WITHDRAWN_SECONDS = 3600.0  # after which withdrawals are read anew
_MOST_MISSES = 10_000


@dataclass(frozen=True)
class Shelf:
    """What one publisher has in one store. Each method raises StoreError where the store does not give it.

    Attributes:
        patience: None: that of a command.
    """

    remote: Remote
    publisher: Publisher
    patience: Patience | None = None

    def record(self, key: str) -> Record | None:
        """Read which graphs there are for a key: one request."""
        data = self.remote.read(records.record_name(self.publisher.key, key), records.MOST_BYTES, self.patience)
        record = None if data is None else records.read(data, self.remote.label, self.publisher, key)
        if isinstance(record, Reason):
            raise StoreError(record)
        return record

    def withdrawn(self, home: Path) -> frozenset[str]:
        """Read which graphs the publisher has withdrawn, and remember them; all that are known to be withdrawn.

        One request, and another where the store can be listed. What a store lacks changes nothing.
        """
        public = self.publisher.key
        withdrawn, wrong = withdrawals.remembered(home, public), False
        try:
            for lines, right in records.read_withdrawals(self.remote, public, self.patience, withdrawn):
                with contextlib.suppress(OSError):  # the next process asks again
                    withdrawals.remember(home, public, lines)
                withdrawn, wrong = withdrawn | lines.keys(), wrong or not right
        except ed25519.NoCryptographyError as error:
            raise StoreError(reasons.NeedsCryptography()) from error
        if wrong:
            raise StoreError(reasons.StoreWrongSignature(self.remote.label, self.publisher.name))
        return withdrawn

    def log(self, record: Record, home: Path, seen: Log | None = None) -> Log | None:
        """Return the log of what the publisher published: one request, and none where one that was seen has all graphs.

        None: there is no log, and never was.

        Args:
            seen: what this process saw last.
        """
        if seen is not None and all(one.manifest in seen.published for one in record.graphs):
            return seen
        try:
            log = published_log.look(self.remote, self.publisher, home, self.patience)
        except ed25519.NoCryptographyError as error:
            raise StoreError(reasons.NeedsCryptography()) from error
        with contextlib.suppress(OSError):
            withdrawals.remember(home, self.publisher.key, log.withdrawn if log is not None else ())
        return log

    def listed(self) -> list[str]:
        """List the digests of the keys that there are graphs for."""
        remote, public = self.remote, self.publisher.key
        if remote.can_list:
            return records.digests(remote.list(f"records/{public}", self.patience), "record")
        data = remote.read(records.index_name(public), records.MOST_INDEX_BYTES, self.patience)
        try:
            return [] if data is None else [*Index.model_validate_json(data).keys]
        except ValidationError as error:
            bad = next((str(one["input"]) for one in error.errors() if one["type"] == "string_pattern_mismatch"), None)
            wrong: Reason = reasons.StoreBadRecord(remote.label, in_brief(error, 80))
            raise StoreError(wrong if bad is None else reasons.StoreBadName(remote.label, bad[:100])) from error

    def graphs(
        self, record: Record, withdrawn: frozenset[str], log: Log | None
    ) -> Iterator[tuple[RemoteGraph, SignedGraph | Reason]]:
        """Read and verify the manifests that a record names, one request each; or tell why one is refused."""
        for one in record.graphs:
            if one.manifest in withdrawn or (log is not None and one.manifest in log.withdrawn):
                yield one, reasons.StoreGraphWithdrawn(self.remote.label, self.publisher.name)
            elif log is not None and log.published.get(one.manifest) != record.key:
                yield one, reasons.StoreGraphNotLogged(self.remote.label, self.publisher.name)
            else:
                text = self._object(MANIFEST_FILE, FileRecord(bytes=one.bytes, blake3=one.manifest))
                yield one, self._verified(text, one.signature, record.key)

    def _verified(self, text: bytes, signature: str, key: str) -> SignedGraph | Reason:
        graph = verify(text, PublisherSignature(key=self.publisher.key, value=signature), self.publisher)
        if isinstance(graph, reasons.Damaged):
            return reasons.StoreGraphRefused(self.remote.label, graph)
        if isinstance(graph, SignedGraph):
            return graph if key_digest(graph.manifest.key) == key else reasons.StoreOtherKey(self.remote.label)
        wrong = reasons.StoreWrongSignature(self.remote.label, self.publisher.name)
        return graph if isinstance(graph, reasons.NeedsCryptography) else wrong

    def keep(self, graph: SignedGraph, home: Home, progress: Callable[[int], None] | None = None) -> Entry | Reason:
        """Read a graph's files, one request each, and make it an entry of the home.

        Args:
            progress: is told of bytes.
        """
        try:
            with home.staging() as folder:
                for name, wanted in graph.manifest.files.items():
                    (folder / name).write_bytes(self._object(name, wanted))
                    if progress is not None:
                        progress(wanted.bytes)
                return home.keep(graph, folder)
        except OSError as error:
            return reasons.StoreGraphNotKept(self.remote.label, in_brief(error))

    def _object(self, file: str, wanted: FileRecord) -> bytes:
        """Read what has a digest."""
        if not wanted.bytes:
            return b""
        if self.patience is not None:
            self.patience.allow(wanted.bytes)
        data = self.remote.read(records.object_name(wanted.blake3), wanted.bytes, self.patience)
        if data is None:
            raise StoreError(reasons.StoreIncomplete(self.remote.label, file))
        if differs(file, data, wanted) is not None:
            raise StoreError(reasons.StoreWrongBytes(self.remote.label, file))
        return data


@dataclass
class _Layer:
    """One store, and how it did so far.

    Attributes:
        resting: until when it is not asked, by the monotonic clock, and why.
        missed: until when it is not asked for a key, and why what it gave was refused, if it gave anything.
        withdrawn: by publisher, until when what is known as taken back is not read anew.
        logs: by publisher, what was seen last.
    """

    remote: Remote | None
    fault: Reason | None = None
    resting: float = 0.0
    rest: float = FIRST_REST
    missed: dict[str, tuple[float, Reason | None]] = field(default_factory=dict)
    withdrawn: dict[str, float] = field(default_factory=dict)
    logs: dict[str, Log | None] = field(default_factory=dict)


class Layers:
    """The remote stores that `ONEGRAPH_STORES` names, in the order in which they are asked. Nothing here raises.

    Args:
        home: the user's graph folder.
        addresses: others than the environment names.
        wait: seconds that one look-up waits for one store, beyond what its graph's size takes.
    """

    def __init__(
        self, home: Path, addresses: Iterable[Address | Reason] | None = None, wait: float | None = None
    ) -> None:
        self._home = home
        self._wait = transport.wait_from_environment() if wait is None else wait
        named = transport.from_environment() if addresses is None else addresses
        self._layers = [
            _Layer(Remote(one, self._wait)) if isinstance(one, Address) else _Layer(None, one, float("inf"))
            for one in named
        ]
        self._withdrawn: dict[str, frozenset[str]] = {}  # by publisher, whichever store told
        self._lock = threading.Lock()

    def take(self, wanted: Wanted, home: Home) -> Taken | Reason | None:
        """Look for a graph in all stores, and keep it in the home; see `Source`.

        Returns:
            The entry; or why the first store that should have told did not; or None: no store has it.
        """
        first: Reason | None = None
        for layer in self._layers:
            with self._lock:
                is_resting = time.monotonic() < layer.resting
                until, reason = layer.missed.get(wanted.digest, (0.0, None))
            if is_resting or until <= time.monotonic():
                answer = self._ask(layer, partial(self._of_publisher, layer, wanted, home), wanted.digest)
                if isinstance(answer, Taken):
                    return answer
                reason = answer
            first = first or reason
        return first

    def _of_publisher(self, layer: _Layer, wanted: Wanted, home: Home, shelf: Shelf) -> Taken | Reason | None:
        """Raises StoreError."""
        began, refused = time.perf_counter(), None
        record = shelf.record(wanted.digest)
        if record is None:
            return None
        withdrawn, public = self._taken_back(layer, shelf), shelf.publisher.key
        layer.logs[public] = shelf.log(record, self._home, layer.logs.get(public))
        for listed, graph in shelf.graphs(record, withdrawn, layer.logs[public]):
            if isinstance(graph, Reason):
                refused = refused or graph
            elif (objection := wanted.differs(graph.manifest)) is not None:
                refused = refused or objection
            elif not equals_one(graph.manifest, wanted.condemned):
                kept = shelf.keep(graph, home)
                if isinstance(kept, Reason):
                    return kept
                seconds = time.perf_counter() - began
                log.info("%s: fetched from %s in %.1f s", kept.folder.name, shelf.remote.label, seconds)
                return Taken(kept, listed)
        return refused

    def keys(self) -> list[str]:
        """List the digests of all keys for which trusted publishers have graphs; of faults see the log."""
        digests: dict[str, None] = {}
        for layer in self._layers:
            self._ask(layer, lambda shelf: digests.update(dict.fromkeys(shelf.listed())))
        return [*digests]

    def refresh(self) -> None:
        """Read what publishers have taken back, as a server does when it starts."""
        for layer in self._layers:
            self._ask(layer, partial(self._taken_back, layer))

    def _ask(self, layer: _Layer, ask: Callable[[Shelf], object], key: str = "") -> Taken | Reason | None:
        """Ask a store for what trusted publishers have, all within one wait; or tell why it does not answer.

        Args:
            key: the digest of the one that is asked for, which is not asked for again at once.
        """
        with self._lock:
            if time.monotonic() < layer.resting or layer.remote is None:
                return layer.fault
        label = layer.remote.label
        try:
            publishers = self._publishers(label)
            if isinstance(publishers, Reason):
                return publishers
            layer.remote.connect()
            patience, outcome = Patience(self._wait), None
            for publisher in publishers:
                answer = ask(Shelf(layer.remote, publisher, patience))
                outcome = answer if isinstance(answer, Taken | Reason) else outcome
                if isinstance(outcome, Taken):
                    break
        except StoreError as error:
            return self._failed(layer, error.reason)
        except Exception as error:  # whatever a protocol does, the queue goes on
            log.debug("a store failed", exc_info=True)
            return self._failed(layer, reasons.StoreUnreachable(label, type(error).__name__))
        with self._lock:
            layer.rest, layer.fault = FIRST_REST, None
            if key and not isinstance(outcome, Taken):
                if len(layer.missed) >= _MOST_MISSES:
                    layer.missed.clear()
                layer.missed[key] = (time.monotonic() + _MISS_SECONDS, outcome)
        return outcome

    def _taken_back(self, layer: _Layer, shelf: Shelf) -> frozenset[str]:
        """Raises StoreError."""
        public = shelf.publisher.key
        if time.monotonic() >= layer.withdrawn.get(public, 0.0):
            withdrawn = shelf.withdrawn(self._home)
            with self._lock:
                self._withdrawn[public] = self._withdrawn.get(public, withdrawn) | withdrawn
            layer.withdrawn[public] = time.monotonic() + _WITHDRAWN_SECONDS
        return self._withdrawn[public]

    def _publishers(self, label: str) -> list[Publisher] | Reason:
        """Those whose graphs may be fetched. Nothing is asked where there are none."""
        try:
            trusted = Publishers(self._home).trusted()
            if isinstance(trusted, reasons.PublisherListRefused):
                return trusted
            if trusted:
                ed25519.require()
        except (OSError, MemoryError) as error:
            return reasons.StoreGraphNotKept(label, in_brief(error))
        except ed25519.NoCryptographyError:
            return reasons.NeedsCryptography()
        return in_order(trusted) or reasons.StoreWithoutPublisher(label)

    def _failed(self, layer: _Layer, reason: Reason) -> Reason:
        """Leave a store alone for a while, unless the fault is that of one graph."""
        if isinstance(reason, reasons.StoreForbidden) or not isinstance(reason, reasons.RemoteStore):
            return reason
        with self._lock:
            if layer.fault is None or time.monotonic() >= layer.resting:
                layer.fault, layer.resting = reason, time.monotonic() + layer.rest
                log.warning("%s; it is not asked again for %.0f s", reason.text, layer.rest)
                layer.rest = min(2 * layer.rest, LONGEST_REST)
        return reason


def in_order(trusted: Mapping[str, str]) -> list[Publisher]:
    """Return the publishers that a user trusts, in the order of their names."""
    return [Publisher(name, key) for name, key in sorted(trusted.items())]
