"""Nothing is compiled twice for one cause: what failed, in this process and before, and what must change first.

Each failure is remembered with what may have been its cause: versions, free bytes of a disk or of memory, a folder. It
is on the disk (`graph_cache.machine_notes`), so that a new process knows it, and `onegraph retry` forgets it.
"""

from __future__ import annotations

import errno
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ...common import memory, reasons, stored_reasons
from ...common.errors import ChildDiedError, CompileError, in_brief
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.torch_private import driver_version
from ...common.version import __version__
from ...graph_cache.entry import Entry
from ...graph_cache.files import free_bytes, takes_no_more_files, total_bytes
from ...graph_cache.machine_notes import Failure, Kind
from ...graph_cache.publish import NotPublishedError
from ...graph_cache.store import Store
from ...graph_cache.trust.private_folder import RefusedError
from ..admission import Limits
from ..request import Request

MOST_TRIES = 4  # of one graph that ends for want of memory, whatever is free

_DAY = 24 * 3600
_PASSING: tuple[Kind, ...] = ("disk", "memory", "place")  # what they say of a machine is forgotten after a day
_DOUBLINGS = 8  # of the days before a compile that failed is tried again: what no day mends costs ever less
_TWICE = 2  # what may be an accident counts from here on
# Facts by name, some of which a failure is remembered with.
_VERSIONS = ("onegraph", "torch", "compiler", "driver", "host")
_TIMEOUT = "timeout"  # that a compile took too long for
_PLACES = "places"  # where a graph may be saved
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_BYTES = 64 << 20  # with less free, any failure to write is one for want of space
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
# More, at least, than was free when something failed.
_CLEARLY_BYTES = {"disk": 256 << 20, "memory": 1 << 30}


class Failures:
    """What one user's compiles failed with.

    Args:
        limits: tell how much memory is free, and how long a compile may take.
    """

    def __init__(self, store: Store, limits: Limits) -> None:
        self._notes = store.notes
        self._store = store
        self._limits = limits
        self._here: set[str] = set()  # keys with accidents in this process
        self._stopped: dict[str, Failure] = {}  # compiles that somebody ended, by key; no other process knows

    def why_not(self, request: Request) -> Refused | None:
        """Why a request's graph is not compiled now: it would fail as it did before. None: it may be."""
        digest = request.key.digest
        failures = self._notes.failures(request.key)
        if digest in self._stopped:
            failures = (*failures, self._stopped[digest])
        if not failures:
            return None
        now = self._facts(request)
        for failure in failures:
            if failure.model in ("", request.source.digest) and all(
                now.get(name, "") == fact for name, fact in failure.facts.items()
            ):
                refused = self._again(failure, digest in self._here)
                if refused is not None:
                    return refused
        return None

    def _again(self, failure: Failure, here: bool) -> Refused | None:
        """Why nothing is tried again while all facts are as they were, or None.

        Args:
            here: whether accidents with the key happened in this process.
        """
        if failure.accident and failure.tries < _TWICE and not here:
            return None
        try:
            because = stored_reasons.from_json(failure.reason)
        except ValueError:  # of another version of the pack, or not written by it
            return None
        if failure.kind in _PASSING and not 0 <= time.time() - failure.time < _DAY:
            return None  # the machine may have got more, and who else used it is long gone
        if failure.kind in _CLEARLY_BYTES:
            room = self._room(failure)
            why = None if room is None else waits_for_more(failure, because, *room)
            return None if why is None else Refused(why)
        if failure.kind == "place":
            return Refused(reasons.WaitsForFolder(because))
        if failure.kind == "again" and failure.tries < _TWICE:
            return None
        if isinstance(because, reasons.BlockSmall):
            return Refused(because)
        days = 0
        if isinstance(because, reasons.CompileFailed) and _TIMEOUT not in failure.facts:
            days = 2 ** min(failure.tries - 1, _DOUBLINGS)
            if not 0 <= time.time() - failure.time < days * _DAY:
                return None  # a header may be there by now, or a linker, and no fact tells of those
        return Refused(reasons.WaitsForChange(because, tuple(sorted(failure.facts)), days))

    def _room(self, failure: Failure) -> tuple[int, int] | None:
        """Bytes that are free, and that there are in all, where too few were; None where nobody can tell."""
        if failure.kind == "disk":
            free, total = free_bytes(Path(failure.where)), total_bytes(Path(failure.where))
            return None if free is None or total is None else (free, total)
        try:
            device = torch.device(failure.where)
            return self._limits.free(device), self._limits.total(device)
        except (RuntimeError, AssertionError):  # no such device here any more
            return None

    # Remembering --------------------------------------------------------------------------------------------

    def remember_compile(
        self, request: Request, reason: Reason, error: CompileError, folder: Path | None = None
    ) -> None:
        """Remember a compile that failed.

        Args:
            folder: where the graph was to be.
        """
        if error.cause == "disk":
            self._remember_full(request, reason, folder)
            return
        if error.cause in ("memory", "device memory"):
            device = request.device if error.cause == "device memory" else torch.device("cpu")
            free, killed = self._limits.free(device), isinstance(error, ChildDiedError)
            self._here.add(request.key.digest)
            failure = self._failure("memory", reason, request, where=str(device), free=free, accident=killed)
            self._remember(request, failure)
            return
        facts = (*_VERSIONS, _TIMEOUT) if error.cause == "time" else _VERSIONS
        failure = self._failure("facts" if error.lasting else "again", reason, request, facts)
        if error.cause == "stopped":  # perhaps the whole machine
            before = self._stopped.get(request.key.digest)
            tries = 1 if before is None else before.tries + 1
            self._stopped[request.key.digest] = failure.model_copy(update={"tries": tries})
            return
        self._remember(request, failure)

    def _remember_full(self, request: Request, reason: Reason, folder: Path | None) -> None:
        """Remember that a disk was full: the graph's own, or that of temporary files, whichever has less room now."""
        places = [Path(tempfile.gettempdir())] if folder is None else [folder, Path(tempfile.gettempdir())]
        room = {place: free for place in places if (free := free_bytes(place)) is not None}
        if room:
            least = min(room, key=lambda place: room[place])
            self._remember(request, self._failure("disk", reason, request, where=str(least), free=room[least]))

    def remember_capture(self, request: Request, reason: Reason) -> None:
        """Remember a model that cannot be captured."""
        self._remember(request, self._failure("facts", reason, request))

    def remember_unsaved(self, request: Request, error: OSError, folder: Path | None) -> Reason:
        """Remember a graph that was compiled and could not be saved; why.

        Args:
            folder: where it was compiled; None: it was not, so that nothing is remembered.
        """
        if isinstance(error, NotPublishedError):
            folder, error = error.location, error.error  # the folder need not exist any more
        places = [folder or self._store.graphs]
        reason = _not_saved(error, places)
        if folder is not None:
            free = free_bytes(folder)
            full = free is not None and (error.errno in _FULL or free < _FULL_BYTES)
            files = isinstance(reason, reasons.NotSaved) and reason.fault == "files"  # which more bytes do not help
            kind: Kind = "disk" if full and not files else "place"
            failure = self._failure(kind, reason, request, (_PLACES,), where=str(folder), free=free or 0)
            self._remember(request, failure)
        return reason

    def remember_wrong(self, request: Request, entry: Entry, reason: Reason) -> None:
        """Remember a graph that was quarantined because of what it computed or did."""
        if entry.manifest.made_by != __version__:  # this version may make a better one
            return
        kind: Kind = "again" if _may_be_accident(reason) else "facts"
        self._remember(request, self._failure(kind, reason, request, model=request.source.digest))

    def had_wrong_graph(self, request: Request) -> bool:
        """Whether a graph of the same key computed or did something wrong with this model."""
        return any(failure.model == request.source.digest for failure in self._notes.failures(request.key))

    def forget(self, request: Request) -> None:
        """Forget why nothing was compiled: it worked. What a graph did wrong afterwards stays in mind."""
        self._stopped.pop(request.key.digest, None)
        before = self._notes.failures(request.key)
        wrong = tuple(failure for failure in before if failure.model)
        if wrong != before:
            self._notes.note_failures(request.key, request.label, wrong)

    def _remember(self, request: Request, new: Failure) -> None:
        others: list[Failure] = []
        for old in self._notes.failures(request.key):
            same = (old.kind, old.model, old.where) == (new.kind, new.model, new.where)
            if same and old.facts == new.facts and old.reason.get("code") == new.reason["code"]:
                passing = new.kind in _PASSING and not 0 <= new.time - old.time < _DAY
                new = new if passing else new.model_copy(update={"tries": old.tries + 1})
            else:
                others.append(old)
        self._notes.note_failures(request.key, request.label, (*others, new))

    def _failure(
        self, kind: Kind, reason: Reason, request: Request, names: tuple[str, ...] = _VERSIONS, **more: Any
    ) -> Failure:
        """Describe what just happened, with the facts of these names."""
        facts = {name: fact for name, fact in self._facts(request).items() if name in names}
        return Failure(kind=kind, reason=stored_reasons.to_json(reason), facts=facts, time=time.time(), **more)

    def _facts(self, request: Request) -> dict[str, str]:
        """What may matter to whether a graph can be compiled, by name. What the key holds is not here."""
        return {
            "onegraph": __version__,
            "torch": str(torch.__version__),
            "compiler": request.backend.compiler(),
            "driver": driver_version() if request.device.type == "cuda" else "",
            "host": request.environment,
            _TIMEOUT: f"{self._limits.seconds:g}",
            _PLACES: str(self._store.graphs),
        }


def waits_for_more(failure: Failure, because: Reason, free: int, total: int) -> Reason | None:
    """Say why nothing is tried again where a disk or memory had too little, or None.

    Args:
        because: the failure's reason.
        free, total: bytes there now.
    """
    if failure.kind == "memory" and failure.tries >= MOST_TRIES:
        return reasons.TriedTooOften(because, failure.tries)
    wanted = memory.clearly_more(failure.free, total, _CLEARLY_BYTES[failure.kind])
    if wanted is None:
        return reasons.WaitsADay(because)
    waits = reasons.WaitsForDisk if failure.kind == "disk" else reasons.WaitsForMemory
    return None if free >= wanted else waits(because, wanted)


def _not_saved(error: OSError, places: Iterable[Path]) -> Reason:
    """Why no folder took a graph. `places`: where it was to go."""
    if isinstance(error, RefusedError) and isinstance(error.reason, reasons.SigningKeyRefused):
        return error.reason
    if isinstance(error, RefusedError):
        return reasons.NotSaved(in_brief(error), "open")
    detail = error.strerror or in_brief(error)
    if error.errno in _FULL:
        return reasons.NotSaved(detail, "files" if any(map(takes_no_more_files, places)) else "full")
    return reasons.NotSaved(detail, "denied" if error.errno in _DENIED else "")


def _may_be_accident(reason: Reason) -> bool:
    """Whether something else than the graph may have made it look wrong, so that another one is worth a compile."""
    if isinstance(reason, reasons.FirstUseFailed):  # an input that gives no finite values says little
        return isinstance(reason.because, reasons.EagerNotFinite)
    return isinstance(reason, reasons.SpotCheckFailed | reasons.DiedWhileLoading | reasons.DiedInTrial)
