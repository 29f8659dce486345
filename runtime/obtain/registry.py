"""The process-wide registry of graphs: find, restore or compile one, and keep it loaded.

Every client uses it: the ComfyUI host, diffusers pipelines. There is one registry per process (`registry()`). Graphs
are shared by every model of their architecture and bound again when another model runs.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ...backends import rebuilder
from ...backends.cuda_graphs import Release
from ...common import memory, reasons
from ...common.errors import LoadError, MemoryShortError
from ...common.log import logger
from ...common.reasons import DiedWhileLoading, FunctionReplaced, Reason, Untrusted
from ...common.refused import Refused
from ...graph_cache.disk import marks
from ...graph_cache.disk.leases import Lease
from ...graph_cache.entry import Entry, constants_of, read
from ...graph_cache.files import is_passing
from ...graph_cache.key import GraphKey
from ...graph_cache.lookup import Broken, Hit, Miss, Unavailable
from ...graph_cache.sources.source import Taken
from ...graph_cache.store import Store
from ..admission import Limits
from ..counters import Counters
from ..graphs.bound_runners import load
from ..graphs.graph_options import GraphOptions
from ..graphs.loaded_graph import LoadedGraph, Origin
from ..guards import code_guard
from ..policy import Policy
from ..request import Request, Slot, WhenMissing
from . import published_use
from .capture_trials import CaptureTrials
from .child_load_test import ChildLoadTest
from .compiles import Compiles, OnProgress
from .eviction import Eviction
from .preloads import Preloads

log = logger("runtime")


class Registry:
    """Graphs of this process by key and device.

    Locks: one for each slot, held while its graph is obtained, also during its compile. Restoring takes one more, so
    that graphs make room for each other one at a time. Status, preloads, other models' graphs and releasing memory
    never wait for a compile. A policy says when a graph is worth using.
    """

    def __init__(self, store: Store | None = None, limits: Limits | None = None, policy: Policy | None = None) -> None:
        self.store = store or Store()
        self.policy = policy or Policy()
        self.counters = Counters()
        self.exact_compiles: dict[str, set[str]] = {}  # by architecture, keys that were compiled for one size or form
        # What clients that sit on a module itself know of it. Not on the module: it would refer to itself.
        self.module_states: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()
        self._graphs: dict[Slot, LoadedGraph] = {}
        self.eviction = Eviction(self._graphs)
        self.compiles = Compiles(self.store, limits or Limits(), self.counters, self._claim, self._is_needed)
        self._load_test = ChildLoadTest(self.store, self.compiles)
        self.preloads = Preloads(self._claim, self._cached, self._restore, self.compiles.failures, self.counters)
        self._trials = CaptureTrials(self.store)
        self._is_swept = False  # of what former processes left
        self._locks: dict[Slot, threading.RLock] = {}
        self._lock = threading.Lock()
        self._restoring = threading.RLock()

    # Looking up ---------------------------------------------------------------------------------------------

    def loaded(self, key: GraphKey, device: torch.device) -> LoadedGraph | None:
        """The graph, if this process has it already."""
        return self._graphs.get((key.digest, str(device)))

    def graphs(self, device: torch.device | None = None) -> list[LoadedGraph]:
        """All loaded graphs, or those on one device."""
        graphs = self._graphs.copy().values()
        return [graph for graph in graphs if device is None or graph.device == device]

    def has(self, request: Request) -> bool:
        """Whether a graph for the request is loaded or stored, so that nothing needs compiling."""
        if self.loaded(request.key, request.device) is not None:
            return True
        lookup = self.store.lookup(request.key, request.source, request.neighbours, code_guard.difference)
        return isinstance(lookup, Hit | Unavailable)

    def _is_needed(self, request: Request) -> bool:
        return request.slot not in self._graphs and not self.has(request)

    # Obtaining ----------------------------------------------------------------------------------------------

    def obtain(self, request: Request, when_missing: WhenMissing, on_progress: OnProgress) -> LoadedGraph | Refused:
        """Give the graph for a request: loaded before, restored from the store, or compiled.

        Never raises for anything that goes wrong with the graph. What `on_progress` raises (the user's interrupt) goes
        through, with nothing left behind.

        Returns:
            The graph, or why there is none.
        """
        try:
            return self._obtain(request, when_missing, on_progress)
        except MemoryError:
            reason = reasons.SystemMemoryShort()
            log.warning("%s runs uncompiled: %s", request.label, reason.text)
            return Refused(reason, passing=True)

    def _obtain(self, request: Request, when_missing: WhenMissing, on_progress: OnProgress) -> LoadedGraph | Refused:
        slot = request.slot
        with self._lock_of(slot):
            cached = self._cached(slot)
            if cached is not None:
                return cached
            reason = self.preloads.refusals.pop(slot, None)
            if reason is not None:
                return Refused(reason)
            restored = self._restore(request, on_progress)
            if not isinstance(restored, LoadedGraph):
                self.counters.misses[restored.reason.code] += 1
            if not isinstance(restored, Miss):
                return restored
            if when_missing == "eager":
                return Refused(restored.reason)
            compiled = self._compile(request, when_missing, on_progress)
            if isinstance(compiled, LoadedGraph) and isinstance(restored.reason, Untrusted):
                compiled.instead_of = restored.reason  # or each start might compile without a word
                log.warning("%s was compiled anew: %s", request.label, restored.reason.text)
            elif compiled == Refused(reasons.CompilesInBackground()) and isinstance(restored.reason, Untrusted):
                return Refused(reasons.CompilesInBackground(restored.reason))
            return compiled

    def _lock_of(self, slot: Slot) -> threading.RLock:
        """What is held while a graph is obtained, so that nobody else compiles the same."""
        with self._lock:
            return self._locks.setdefault(slot, threading.RLock())

    @contextlib.contextmanager
    def _claim(self, slot: Slot) -> Iterator[bool]:
        """Take a slot's lock if nobody has it; whether it was taken."""
        lock = self._lock_of(slot)
        taken = lock.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken:
                lock.release()

    def _cached(self, slot: Slot) -> LoadedGraph | Refused | None:
        """The graph, or the reason why there is none, that this process knows already."""
        graph = self._graphs.get(slot)
        if graph is not None:
            return graph if graph.retired is None else Refused(graph.retired)
        return self.compiles.refusal(slot)

    def _restore(self, request: Request, on_progress: OnProgress | None = None) -> LoadedGraph | Refused | Miss:
        """Load the graph from the store; one that a child must try first (`ChildLoadTest`) with `on_progress`."""
        started = time.perf_counter()
        unable = request.backend.can_run(request.device).reason
        if unable is not None:
            return Refused(unable)
        if not self._is_swept:
            self._is_swept = True
            self.store.sweep()
        self.store.sweep_beside(request.source)
        differences = code_guard.Differences()
        lookup = self.store.find(request.key, differences, request.source.digest)
        if isinstance(lookup, Broken):
            return self._broken(request, lookup)
        if isinstance(lookup, Unavailable):
            return Refused(lookup.reason, passing=True)
        if isinstance(lookup, Miss):
            taken = self.store.take(request.key, request.source, request.neighbours, differences)
            if not isinstance(taken, Taken):
                missed = lookup if taken is None else Miss(taken)
                return Refused(differences.replaced, passing=True) if differences.replaced else missed
            entry = taken.entry
            self.counters.fetches += taken.graph is not None
            published_use.believe(self.store, taken, request)
        else:
            entry = lookup.entry
        lease = self.store.lease(entry)
        if isinstance(lease, Reason):
            return Miss(lease)
        failed = self._load_test.why_not(request, entry, on_progress)
        if failed is not None:
            return failed
        graph = self._load(request, entry, lease, "restored")
        if isinstance(graph, LoadedGraph):
            self.counters.restores += 1
            self.counters.restore_times.add(entry.folder.name, time.perf_counter() - started)
            self.store.disk.changed()
        return graph

    def _broken(self, request: Request, broken: Broken) -> Refused | Miss:
        """Quarantine an entry. The next look-up finds another copy, or one more compile makes another."""
        entry = read(broken.folder)
        if not self.store.quarantine(broken):
            return Miss(broken.reason)
        if isinstance(broken.reason, DiedWhileLoading) and isinstance(entry, Entry):
            self.compiles.failures.remember_wrong(request, entry, broken.reason)
        return Refused(reasons.CompiledAgainLater(broken.reason))

    def _compile(self, request: Request, when_missing: WhenMissing, on_progress: OnProgress) -> LoadedGraph | Refused:
        unable = request.backend.can_compile(request.device).reason
        if unable is not None:
            return Refused(unable)
        foreign = code_guard.foreign_method(request.module)
        if foreign is not None:  # the graph would be another model's, and could not be used
            return Refused(foreign, passing=True)
        sibling = None
        if rebuilder(request.backend) is not None:
            sibling = self.store.sibling(request.key, code_guard.difference)
        compiled = self.compiles.start(request, when_missing, on_progress, sibling)
        if isinstance(compiled, Refused):
            return compiled
        difference = code_guard.difference(compiled.manifest)
        if isinstance(difference, FunctionReplaced):
            return Refused(difference, passing=True)
        if difference is not None:
            return self.compiles.refuse(request.slot, reasons.NeedsRestart(difference))
        lease = self.store.lease(compiled)
        if isinstance(lease, Reason):
            return Refused(lease, passing=True)
        return self._load(request, compiled, lease, "compiled")

    def _load(self, request: Request, entry: Entry, lease: Lease, origin: Origin) -> LoadedGraph | Refused:
        with self._restoring:
            try:
                crowded = self.eviction.make_room(request, entry)
                if crowded is not None:
                    return Refused(crowded)
                constants = constants_of(entry)
                with self.store.markers.loading(entry.folder):
                    runner, another = load(request, entry, entry.folder)
            except MemoryShortError as error:
                return Refused(reasons.LoadFailed(str(error)))
            except LoadError as error:  # its files are right: what it lacks is here, and may be there at the next run
                return Refused(reasons.LoadFailed(str(error)), passing=is_passing(error.__cause__))
            make_room = functools.partial(self.release_captures, request.device, "needed")
            wrong = functools.partial(self.compiles.failures.remember_wrong, request.without_module(), entry)
            served = request.source.digest in {model.digest for model in marks.models(entry.folder)}
            anew = not served and self.compiles.failures.had_wrong_graph(request)
            options = GraphOptions(constants, self.policy, another, make_room, wrong, anew, lease)
            self.store.note_use(entry, origin, request.source)
            graph = LoadedGraph(entry, runner, request, self.store, origin, options)
            self._graphs[request.slot] = graph
            self._trials.note(request, graph)
            return graph

    # Letting go ---------------------------------------------------------------------------------------------

    def retire(self, request: Request, reason: Reason) -> None:
        """Take a graph that turned out wrong out of use, in this process and others."""
        graph = self.loaded(request.key, request.device)
        if graph is not None and graph.retired is None:
            graph.retired = reason
            graph.close()
            log.warning("%s: %s", graph.entry.folder.name, reason.text)
            self.store.quarantine(Broken.of(graph.entry, reason))
            self.compiles.failures.remember_wrong(request, graph.entry, reason)

    def release_orphans(self) -> None:
        """Release models that are gone. Called when a run starts, for a collector's callback could deadlock."""
        for graph in self.graphs():
            graph.release_orphan()

    def captured_bytes(self, device: torch.device | None = None) -> int:
        """Bytes that CUDA graphs hold, on a device or on all."""
        return sum(graph.captured_bytes for graph in self.graphs(device))

    def release_captures(self, device: torch.device, why: Release) -> int:
        """Release what CUDA graphs hold on a device; the bytes. Never waits and never raises."""
        released = 0
        for graph in self.graphs(device):
            try:
                released += graph.release_captures(why)
            except Exception:  # the host asks for memory in the midst of its own work
                log.exception("CUDA graphs could not be released")
        return released

    def trim(self, device: torch.device) -> None:
        """Have graphs release what only makes calls faster, where memory is short. Called when a run ends."""
        self._trials.start(device)
        graphs = [graph for graph in self.graphs(device) if graph.held_bytes]
        if graphs:
            available = memory.unused_bytes(device) - sum(graph.held_bytes for graph in graphs)
            for graph in graphs:
                graph.trim(available)

    def close(self) -> None:
        """Close all graphs."""
        for slot in list(self._graphs):
            graph = self._graphs.pop(slot, None)
            if graph is not None:
                graph.close()

    def remember_restores(self) -> None:
        """Write what this process's restores took, for lists of later processes. Takes a write to the disk."""
        seconds = self.counters.restore_times.last.copy()
        if seconds:
            self.store.notes.note_restores(seconds)

    def status(self) -> dict[str, Any]:
        """Numbers of compiles and memory for the status route. Takes no lock."""
        return {
            "compiling": self.compiles.under_way(),
            "background_compiles": self.compiles.in_background(),
            "deferred_compiles": self.compiles.deferred(),
            "captured_bytes": self.captured_bytes(),
        }


_current: Registry | None = None
_current_lock = threading.Lock()


def registry() -> Registry:
    """The process's one registry."""
    global _current
    with _current_lock:
        if _current is None:
            _current = Registry()
        return _current


def use(new: Registry | None) -> Registry | None:
    """Make another registry the process's one, e.g. one that uses graphs of any speed; the one before."""
    global _current
    with _current_lock:
        before, _current = _current, new
        return before


@contextlib.contextmanager
def using(new: Registry | None) -> Iterator[Registry | None]:
    """While this lasts another registry is the process's one; None: a new one as soon as it is asked for."""
    before = use(new)
    try:
        yield new
    finally:
        use(before)
