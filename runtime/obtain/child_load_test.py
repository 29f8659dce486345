"""After a process died while it loaded a graph: a child process loads it first, where a crash costs nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ...common import reasons
from ...common.errors import ChildDiedError, CompileError, LoadError, in_brief
from ...common.log import logger
from ...common.reasons import DiedInTrial, DiedOnceWhileLoading, TrialPending
from ...common.refused import Refused
from ...compiler.process.job import JSON, Job
from ...compiler.process.supervisor import compile_in_child
from ...graph_cache.entry import Entry, constants_of
from ...graph_cache.integrity import copy_files
from ...graph_cache.lookup import Broken
from ...graph_cache.store import Store
from ..request import Request
from .compiles import Compiles, OnProgress

log = logger("runtime")

STAGE = "trying it in a child process, since one died with it"  # what the user reads meanwhile
SECONDS = 120.0  # as long as the queue waits at most; importing torch and a call at the smallest sizes take a few
_TOO_SLOW = TrialPending(f"it took more than {SECONDS:.0f} s")  # this process does not try again


class ChildLoadTest:
    """Tries of graphs with which a process died."""

    def __init__(self, store: Store, compiles: Compiles) -> None:
        self._store = store
        self._compiles = compiles

    def why_not(self, request: Request, entry: Entry, on_progress: OnProgress | None) -> Refused | None:
        """Where a process died while it loaded the entry, have a child try it; why it is not loaded here, or None.

        Args:
            on_progress: called at least every 0.1 s; what it raises (the user's interrupt) goes through. None: nobody
                waits for a child.
        """
        if self._store.markers.note_death(entry.folder):
            log.warning("%s: %s", entry.folder.name, DiedOnceWhileLoading().text)
        if not self._store.markers.died_once_while_loading(entry.folder):
            return None
        if on_progress is None:
            return Refused(reasons.TrialPending(), passing=True)
        wrong = load_in_child(request, entry, self._store, on_progress).wrong
        if isinstance(wrong, DiedInTrial):
            log.warning("%s: %s", entry.folder.name, wrong.text)
            self._store.quarantine(Broken.of(entry, wrong))
            self._compiles.failures.remember_wrong(request, entry, wrong)
            return Refused(reasons.CompiledAgainLater(wrong))
        if wrong == _TOO_SLOW:
            return self._compiles.refuse(request.slot, _TOO_SLOW)
        return None if wrong is None else Refused(wrong)


def _of_block(request: Request, entry: Entry) -> JSON | None:
    call_rules = entry.manifest.call_rules
    return None if call_rules is None else {"signature": call_rules, "packages": [*request.packages]}


class Tried(NamedTuple):
    """What a child process has shown.

    Attributes:
        wrong: that the child died too, or the graph computed nothing of use; that nobody can tell, as memory ran out,
            somebody ended the child, or it took too long; or None: nothing that it did tells against the graph.
        captured: whether it could capture a call.
    """

    wrong: DiedInTrial | TrialPending | None = None
    captured: bool = False


def load_in_child(request: Request, entry: Entry, store: Store, on_progress: OnProgress, niceness: int = 0) -> Tried:
    """Load an entry in a child process and call it once, with weights of zeros at its smallest sizes.

    Args:
        on_progress: called at least every 0.1 s; what it raises (the user's interrupt) stops the child and goes
            through.
        niceness: of the child.
    """
    try:
        constants = constants_of(entry)
    except LoadError:
        return Tried()  # it is refused when it is loaded
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
        block=_of_block(request, entry),
        niceness=niceness,
    )
    try:
        with store.private.staging() as folder:
            wrong = copy_files(entry, folder)  # the child writes beside what it reads
            if wrong is not None:
                return Tried()
            done = compile_in_child(job, folder, lambda progress: on_progress(replace(progress, stage=STAGE)), SECONDS)
            return Tried(captured=done.cuda_graphs)
    except CompileError as error:
        if error.cause == "time":
            return Tried(_TOO_SLOW)
        died = not error.cause and (error.lasting or isinstance(error, ChildDiedError))
        return Tried(DiedInTrial(in_brief(error)) if died else TrialPending(in_brief(error)))
    except OSError as error:
        return Tried(TrialPending(in_brief(error)))
