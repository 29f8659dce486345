"""After a process died while it loaded a graph: a child process loads it first, where a crash costs nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from ..common import reasons
from ..common.errors import ChildDiedError, CompileError, LoadError, in_brief
from ..common.reasons import DiedInTrial, Reason, TrialPending
from ..common.shapes import Refused
from ..compiler.job import Job
from ..compiler.supervisor import compile_in_child
from ..graph_cache.entry import Entry
from ..graph_cache.lookup import Broken
from ..graph_cache.store import Store
from .compiles import Compiles, Watch
from .request import Request

log = logging.getLogger("onegraph.runtime")

STAGE = "trying it in a child process, since one died with it"  # what the user reads meanwhile
SECONDS = 120.0  # as long as the queue waits at most; importing torch and a call at the smallest sizes take a few


class Trials:
    """Tries of graphs with which a process died."""

    def __init__(self, store: Store, compiles: Compiles) -> None:
        self._store = store
        self._compiles = compiles

    def why_not(self, request: Request, entry: Entry, watch: Watch | None) -> Refused | None:
        """Where a process died while it loaded the entry, have a child try it; why it is not loaded here, or None.

        Args:
            watch: called at least every 0.1 s; what it raises (the user's interrupt) goes through. None: nobody waits
                for a child.
        """
        died = self._store.note_death(entry)
        if died is not None:
            log.warning("%s: %s", entry.folder.name, died.text)
        if not self._store.died_once(entry):
            return None
        if watch is None:
            return Refused(reasons.TrialPending(), passing=True)
        tried = in_child(request, entry, self._store, watch)
        if isinstance(tried, Failed):
            log.warning("%s: %s", entry.folder.name, tried.reason.text)
            self._store.quarantine(Broken.of(entry, tried.reason))
            self._compiles.failures.remember_wrong(request, entry, tried.reason)
            return Refused(reasons.CompiledAgainLater(tried.reason))
        if isinstance(tried, Undecided):
            return self._compiles.refuse(request.slot, tried.reason) if tried.lasting else Refused(tried.reason)
        return None


@dataclass(frozen=True)
class Passed:
    """Nothing that the child process did tells against the graph."""


@dataclass(frozen=True)
class Failed:
    """The child process died too, or the graph computed nothing of use."""

    reason: DiedInTrial


@dataclass(frozen=True)
class Undecided:
    """Nobody can tell: memory ran out, somebody ended the child process, or it took too long.

    Attributes:
        lasting: whether this process shall not try again.
    """

    reason: TrialPending
    lasting: bool


def in_child(request: Request, entry: Entry, store: Store, watch: Watch) -> Passed | Failed | Undecided:
    """Load an entry in a child process and call it once, with weights of zeros at its smallest sizes.

    Args:
        watch: called at least every 0.1 s; what it raises (the user's interrupt) stops the child and goes through.
    """
    with store.private(entry) as folder:
        if isinstance(folder, Reason):
            return Passed()  # it is refused when it is loaded, like one whose weights cannot be read
        try:
            constants = store.constants(entry, folder)
        except LoadError:
            return Passed()
        job = Job(
            component=request.key.component,
            backend=request.backend.name,
            device=str(request.device),
            shapes=request.shapes,
            export_shapes=request.shapes,
            example_sizes={},
            skeleton=b"",
            client=request.client,
            constants=constants,
            check_only=tuple(entry.manifest.files),
        )
        try:
            compile_in_child(job, folder, lambda progress: watch(replace(progress, stage=STAGE)), SECONDS)
        except ChildDiedError as error:
            if error.cause:  # it was ended from outside
                return Undecided(TrialPending(in_brief(error)), lasting=False)
            return Failed(reasons.DiedInTrial(in_brief(error)))
        except CompileError as error:
            if error.lasting and not error.cause:
                return Failed(reasons.DiedInTrial(in_brief(error)))
            if error.cause == "time":
                return Undecided(TrialPending(f"it took more than {SECONDS:.0f} s"), lasting=True)
            return Undecided(TrialPending(in_brief(error)), lasting=False)
        except OSError as error:
            return Undecided(TrialPending(in_brief(error)), lasting=False)
    return Passed()
