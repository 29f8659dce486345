"""The remote stores of this process, in the order in which they are asked after the local one missed.

A graph that one of them has is verified, kept in the local store under its budget, and found there ever after. A store
that is slow, gone or lying costs one bounded wait, and is then left alone for a while. Nothing here raises for what a
store does, and one look-up gives one reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ...common.errors import in_brief
from ...common.reasons import (
    NeedsCryptography,
    PublisherListRefused,
    Reason,
    RemoteStore,
    StoreForbidden,
    StoreGraphNotKept,
    StoreUnreachable,
    StoreWithoutPublisher,
)
from ..entry import Entry
from ..home import Home, equals_one
from ..sources.source import Taken, Wanted
from ..trust import ed25519
from ..trust.publishers import Publishers
from . import address, fetching
from .address import Address
from .fetching import Publisher
from .transport import Patience, Remote, StoreError

log = logging.getLogger("onegraph.graph_cache")

FIRST_REST, LONGEST_REST = 60.0, 600.0  # seconds in which a store that failed is not asked; doubled each time
_MISS_SECONDS = 60.0  # in which a store is not asked again for what it did not have
_WITHDRAWN_SECONDS = 3600.0  # after which withdrawals are read anew
_MOST_MISSES = 10_000


@dataclass
class _Layer:
    """One store, and how it did so far.

    Attributes:
        resting: until when it is not asked, by the monotonic clock, and why.
        missed: until when it is not asked for a key, and why what it gave was refused, if it gave anything.
        withdrawn: by publisher, until when what is known as taken back is not read anew.
    """

    remote: Remote | None
    fault: Reason | None = None
    resting: float = 0.0
    rest: float = FIRST_REST
    missed: dict[str, tuple[float, Reason | None]] = field(default_factory=dict)
    withdrawn: dict[str, float] = field(default_factory=dict)


class Layers:
    """The remote stores that `ONEGRAPH_STORES` names.

    Args:
        home: the user's graph folder.
        addresses: others than the environment names.
        wait: seconds that one look-up waits for one store, beyond what its graph's size takes.
    """

    def __init__(
        self,
        home: Path,
        addresses: Iterable[Address | Reason] | None = None,
        wait: float | None = None,
    ) -> None:
        self._home = home
        self._wait = address.wait_from_environment() if wait is None else wait
        named = address.from_environment() if addresses is None else addresses
        self._layers = [
            _Layer(Remote(one, self._wait)) if isinstance(one, Address) else _Layer(None, one, float("inf"))
            for one in named
        ]
        self._withdrawn: dict[str, frozenset[str]] = {}  # by publisher, whichever store told
        self._lock = threading.Lock()
        self.fetched = 0  # graphs so far

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def requests(self) -> int:
        """Reads of all stores so far."""
        return sum(layer.remote.requests for layer in self._layers if layer.remote is not None)

    @property
    def bytes(self) -> int:
        """Bytes that all stores gave so far."""
        return sum(layer.remote.bytes for layer in self._layers if layer.remote is not None)

    def take(self, wanted: Wanted, home: Home) -> Taken | Reason | None:
        """Look for a graph in all stores, and keep it in the home; see `Source`.

        Returns:
            The entry; or why the first store that should have told did not; or None: no store has it.
        """
        first: Reason | None = None
        for layer in self._layers:
            try:
                found = self._ask(layer, wanted, home)
            except Exception as error:  # whatever a protocol does, the queue goes on
                log.debug("a store failed", exc_info=True)
                label = layer.remote.label if layer.remote is not None else ""
                found = self._failed(layer, StoreUnreachable(label, type(error).__name__))
            if isinstance(found, Taken):
                return found
            first = first or found
        return first

    def keys(self) -> list[str]:
        """List the digests of all keys for which trusted publishers have graphs. Never raises; see the log."""
        found: dict[str, None] = {}

        def ask(layer: _Layer, remote: Remote, publisher: Publisher, patience: Patience) -> None:
            found.update(dict.fromkeys(fetching.keys(remote, publisher, patience)))

        self._ask_all(ask)
        return [*found]

    def refresh(self) -> None:
        """Read what publishers have taken back, as a server does when it starts. Never raises."""
        self._ask_all(self._taken_back)

    def _ask_all(self, ask: Callable[[_Layer, Remote, Publisher, Patience], object]) -> None:
        for layer in self._layers:
            publishers = self._publishers(layer)
            if isinstance(publishers, Reason) or layer.remote is None or time.monotonic() < layer.resting:
                continue
            try:
                layer.remote.connect()
                for publisher in publishers:
                    ask(layer, layer.remote, publisher, Patience(self._wait))
            except StoreError as error:
                self._failed(layer, error.reason)
            except Exception:
                log.debug("a store failed", exc_info=True)

    def _ask(self, layer: _Layer, wanted: Wanted, home: Home) -> Taken | Reason | None:
        now = time.monotonic()
        with self._lock:
            if now < layer.resting:
                return layer.fault
            key = wanted.digest
            until, why = layer.missed.get(key, (0.0, None))
            if until > now:
                return why
        publishers = self._publishers(layer)
        if isinstance(publishers, Reason) or layer.remote is None:
            return publishers if isinstance(publishers, Reason) else None
        began, found = time.perf_counter(), None
        try:
            layer.remote.connect()
            patience = Patience(self._wait)
            for publisher in publishers:
                found = self._of_publisher(layer, publisher, wanted, home, patience) or found
                if isinstance(found, Taken):
                    break
        except StoreError as error:
            return self._failed(layer, error.reason)
        with self._lock:
            layer.rest, layer.fault = FIRST_REST, None
        if isinstance(found, Taken):
            self.fetched += 1
            log.info(
                "%s: fetched from %s in %.1f s", found.entry.folder.name, layer.remote.label,
                time.perf_counter() - began,
            )  # fmt: skip
        else:
            self._note_miss(layer, key, found)
        return found

    def _of_publisher(
        self, layer: _Layer, publisher: Publisher, wanted: Wanted, home: Home, patience: Patience
    ) -> Taken | Reason | None:
        """Raises StoreError."""
        remote = layer.remote
        assert remote is not None
        record = fetching.find_record(remote, publisher, wanted.digest, patience)
        if record is None:
            return None
        withdrawn = self._taken_back(layer, remote, publisher, patience)
        refused: Reason | None = None
        for found in fetching.manifests(remote, publisher, record, withdrawn, patience):
            if isinstance(found, Reason):
                refused = refused or found
            elif (objection := wanted.differs(found.manifest)) is not None:
                refused = refused or objection
            elif not equals_one(found.manifest, wanted.condemned):
                kept = fetching.keep(remote, found, home, patience)
                return Taken(kept, found.graph) if isinstance(kept, Entry) else kept
        return refused

    def _taken_back(self, layer: _Layer, remote: Remote, publisher: Publisher, patience: Patience) -> frozenset[str]:
        if time.monotonic() >= layer.withdrawn.get(publisher.key, 0.0):
            found = fetching.refresh_withdrawals(remote, publisher, self._home, patience)
            with self._lock:
                self._withdrawn[publisher.key] = self._withdrawn.get(publisher.key, found) | found
            layer.withdrawn[publisher.key] = time.monotonic() + _WITHDRAWN_SECONDS
        return self._withdrawn[publisher.key]

    def _publishers(self, layer: _Layer) -> list[Publisher] | Reason:
        """Those whose graphs may be fetched. Nothing is asked where there are none."""
        label = layer.remote.label if layer.remote is not None else ""
        try:
            trusted = Publishers(self._home).trusted()
        except (OSError, MemoryError) as error:
            return StoreGraphNotKept(label, in_brief(error))
        if isinstance(trusted, PublisherListRefused):
            return trusted
        if not trusted:
            return StoreWithoutPublisher(label)
        try:
            ed25519.require()
        except ed25519.NoCryptographyError:
            return NeedsCryptography()
        return fetching.trusted(trusted)

    def _failed(self, layer: _Layer, reason: Reason) -> Reason:
        """Leave a store alone for a while, unless the fault is that of one graph."""
        if isinstance(reason, StoreForbidden) or not isinstance(reason, RemoteStore):
            return reason
        with self._lock:
            if layer.fault is None or time.monotonic() >= layer.resting:
                layer.fault, layer.resting = reason, time.monotonic() + layer.rest
                log.warning("%s; it is not asked again for %.0f s", reason.text, layer.rest)
                layer.rest = min(2 * layer.rest, LONGEST_REST)
        return reason

    def _note_miss(self, layer: _Layer, key: str, why: Reason | None) -> None:
        now = time.monotonic()
        with self._lock:
            if len(layer.missed) >= _MOST_MISSES:
                layer.missed = {one: missed for one, missed in layer.missed.items() if missed[0] > now}
                if len(layer.missed) >= _MOST_MISSES:
                    layer.missed.clear()
            layer.missed[key] = (now + _MISS_SECONDS, why)
