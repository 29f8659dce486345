"""Nothing is compiled twice for one cause: what failed, in this process and before, and what must change first.

Each failure is remembered with what may have been its cause: versions, free bytes of a disk or of memory, a folder. It
is on the disk (`graph_cache.crash.failures`), so that a new process knows it, and `onegraph retry` forgets it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..common import reasons, stored_reasons
from ..common.errors import ChildDiedError, CompileError
from ..common.reasons import Reason
from ..common.shapes import Refused
from ..common.torch_private import driver_version
from ..graph_cache.crash.failures import Failure, Kind
from ..graph_cache.entry import Entry
from ..graph_cache.store import Store
from . import admission, disk
from .admission import Limits
from .request import Request

_DAY = 24 * 3600
_PASSING: tuple[Kind, ...] = ("disk", "memory", "place")  # what they say of a machine is forgotten after a day
_TWICE = 2  # what may be an accident counts from here on
_TIMEOUT = "timeout"  # the fact that a compile took too long for
_FULL_BYTES = 64 << 20  # with less free, any failure to write is one for want of space


class Failures:
    """What one user's compiles failed with.

    Args:
        limits: tell how much memory is free, and how long a compile may take.
    """

    def __init__(self, store: Store, limits: Limits) -> None:
        self._files = store.failures
        self._store = store
        self._limits = limits
        self._here: set[str] = set()  # keys with accidents in this process
        self._stopped: dict[str, Failure] = {}  # compiles that somebody ended, by key; no other process knows

    def why_not(self, request: Request) -> Refused | None:
        """Why a request's graph is not compiled now: it would fail as it did before. None: it may be."""
        digest = request.key.digest
        found = self._files.read(request.key)
        if digest in self._stopped:
            found = (*found, self._stopped[digest])
        if not found:
            return None
        now = self._facts(request)
        for failure in found:
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
        if failure.kind == "disk":
            return disk.DiskShortage(because, Path(failure.where), failure.free).again()
        if failure.kind == "memory":
            return self._again_with_memory(failure, because)
        if failure.kind == "place":
            return Refused(reasons.WaitsForPlace(because))
        if failure.kind == "again" and failure.tries < _TWICE:
            return None
        return Refused(reasons.WaitsForChange(because, tuple(sorted(failure.facts))))

    def _again_with_memory(self, failure: Failure, because: Reason) -> Refused | None:
        try:
            device = torch.device(failure.where)
            free, total = self._limits.free(device), self._limits.total(device)
        except (RuntimeError, AssertionError):  # no such device here any more
            return None
        return admission.Shortage(because, device, failure.free, failure.tries).again(free, total)

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
        short = admission.shortage(reason, error.cause, request.device, self._limits, None)
        if short is not None:
            killed = isinstance(error, ChildDiedError)
            found = self._failure("memory", reason, request, where=str(short.device), free=short.free, accident=killed)
            self._here.add(request.key.digest)
            self._remember(request, found)
            return
        found = self._failure("facts" if error.lasting else "again", reason, request)
        if error.cause == "stopped":  # perhaps the whole machine
            before = self._stopped.get(request.key.digest)
            tries = 1 if before is None else before.tries + 1
            self._stopped[request.key.digest] = found.model_copy(update={"tries": tries})
            return
        if error.cause == "time":
            found = found.model_copy(update={"facts": found.facts | {_TIMEOUT: f"{self._limits.seconds:g}"}})
        self._remember(request, found)

    def _remember_full(self, request: Request, reason: Reason, folder: Path | None) -> None:
        """Remember that a disk was full: the graph's own, or that of temporary files, whichever has less room now."""
        places = [Path(tempfile.gettempdir())] if folder is None else [folder, Path(tempfile.gettempdir())]
        short = [found for found in (disk.shortage(reason, place) for place in places) if found is not None]
        if short:
            least = min(short, key=lambda one: one.free)
            self._remember(request, self._failure("disk", reason, request, where=str(least.folder), free=least.free))

    def remember_capture(self, request: Request, reason: Reason) -> None:
        """Remember a model that cannot be captured."""
        self._remember(request, self._failure("facts", reason, request))

    def remember_unsaved(self, request: Request, reason: Reason, error: OSError, folder: Path) -> None:
        """Remember a graph that was compiled and could not be saved.

        Args:
            folder: where it was to be; it need not exist any more.
        """
        short = disk.shortage(reason, folder)
        free = 0 if short is None else short.free
        full = short is not None and (error.errno in disk.FULL or free < _FULL_BYTES)
        kind: Kind = "disk" if full else "place"
        found = self._failure(kind, reason, request, where=str(folder), free=free)
        places = " ".join(str(location) for location in self._store.locations(request.source))
        self._remember(request, found.model_copy(update={"facts": {"places": places}}))

    def remember_wrong(self, request: Request, entry: Entry, reason: Reason) -> None:
        """Remember a graph that was quarantined because of what it computed or did."""
        if entry.manifest.made_by != __version__:  # this version may make a better one
            return
        found = self._failure("again" if _may_be_accident(reason) else "facts", reason, request)
        self._remember(request, found.model_copy(update={"model": request.source.digest}))

    def forget(self, request: Request) -> None:
        """Forget why nothing was compiled: it worked. What a graph did wrong afterwards stays in mind."""
        self._stopped.pop(request.key.digest, None)
        before = self._files.read(request.key)
        wrong = tuple(failure for failure in before if failure.model)
        if wrong != before:
            self._files.write(request.key, request.label, wrong)

    def _remember(self, request: Request, new: Failure) -> None:
        others: list[Failure] = []
        for old in self._files.read(request.key):
            same = (old.kind, old.model, old.where) == (new.kind, new.model, new.where)
            if same and old.facts == new.facts and old.reason.get("code") == new.reason["code"]:
                passing = new.kind in _PASSING and not 0 <= new.time - old.time < _DAY
                new = new if passing else new.model_copy(update={"tries": old.tries + 1})
            else:
                others.append(old)
        self._files.write(request.key, request.label, (*others, new))

    def _failure(self, kind: Kind, reason: Reason, request: Request, **where: Any) -> Failure:
        facts = self._facts(request)
        del facts[_TIMEOUT], facts["places"]
        return Failure(kind=kind, reason=stored_reasons.to_json(reason), facts=facts, time=time.time(), **where)

    def _facts(self, request: Request) -> dict[str, str]:
        """What may matter to whether a graph can be compiled, by name. What the key holds is not here."""
        return {
            "onegraph": __version__,
            "torch": str(torch.__version__),
            "compiler": request.backend.compiler(),
            "driver": driver_version() if request.device.type == "cuda" else "",
            "host": request.environment,
            _TIMEOUT: f"{self._limits.seconds:g}",
            "places": " ".join(str(location) for location in self._store.locations(request.source)),
        }


def _may_be_accident(reason: Reason) -> bool:
    """Whether something else than the graph may have made it look wrong, so that another one is worth a compile."""
    if isinstance(reason, reasons.FirstUseFailed):  # an input that gives no finite values says little
        return isinstance(reason.because, reasons.EagerNotFinite)
    return isinstance(reason, reasons.SpotCheckFailed | reasons.DiedWhileLoading | reasons.DiedInTrial)
