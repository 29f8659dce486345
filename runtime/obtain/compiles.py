"""Compiles of this process: admitted by memory, followed, put in the background or off until the host is idle."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...common import memory, reasons
from ...common.errors import CaptureError, CompileError, LoadError
from ...common.log import logger
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.version import __version__
from ...compiler import skeleton
from ...compiler.process import progress
from ...compiler.process.job import Compiled, Job
from ...compiler.process.progress import Progress
from ...compiler.process.supervisor import compile_in_child
from ...graph_cache.entry import Entry, constants_of
from ...graph_cache.publish import NewEntry
from ...graph_cache.store import Store
from .. import admission
from ..admission import Limits
from ..counters import Counters
from ..request import Request, Slot, WhenMissing
from .deferred_compiles import DeferredCompiles
from .failures import Failures

log = logger("runtime")

_BACKGROUND_NICENESS = 10  # the run beside which it compiles goes first

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class _Waiting:
    """A compile that waits until the host is idle; its request holds no model."""

    request: Request
    job: Job
    need: admission.MemoryNeed


@dataclass(frozen=True)
class _UnderWay:
    """A compile under way.

    Attributes:
        taken: bytes of the device that it takes.
    """

    component: str
    label: str
    device: torch.device
    taken: int
    progress: Progress | None = None


class _GiveWay(Exception):
    """The host has begun something and needs the memory of a deferred compile."""


class Compiles:
    """Compiles what the registry misses, and remembers what failed.

    Args:
        claim: a context that is true while this thread alone obtains the graph of a slot.
        is_needed: whether nobody has the graph of a request meanwhile.
    """

    def __init__(
        self,
        store: Store,
        limits: Limits,
        counters: Counters,
        claim: Callable[[Slot], AbstractContextManager[bool]],
        is_needed: Callable[[Request], bool],
    ) -> None:
        self._store = store
        self.limits = limits
        self._counters = counters
        self._claim = claim
        self._is_needed = is_needed
        self.failures = Failures(store, limits)
        self._refusals: dict[Slot, Reason] = {}  # for the life of this process
        self._background: dict[Slot, tuple[threading.Thread, float]] = {}
        self._under_way: dict[Slot, _UnderWay] = {}
        self._deferred: DeferredCompiles[Slot, _Waiting] = DeferredCompiles(
            self._may_start, self._start_deferred, limits.poll_seconds
        )

    # What is known ------------------------------------------------------------------------------------------

    def refusal(self, slot: Slot) -> Refused | None:
        """Why this process has no graph for this slot: it can have none, or compiles it in the background."""
        if slot in self._refusals:
            return Refused(self._refusals[slot])
        background = self._background.get(slot)
        if background is not None and background[0].is_alive():
            compiling = self._under_way.get(slot)
            progress = None if compiling is None else compiling.progress
            share = None if progress is None else round(progress.share, 2)
            return Refused(reasons.StillCompiling(int(time.perf_counter() - background[1]), share))
        return None

    def refuse(self, slot: Slot, reason: Reason) -> Refused:
        """Refuse, now and whenever this process asks again."""
        self._refusals[slot] = reason
        return Refused(reason)

    def under_way(self) -> list[dict[str, Any]]:
        """What compiles, how far it is (`share` of 1) and how long it probably still takes (`remaining_s`)."""
        return [
            {
                "component": one.component,
                "label": one.label,
                "stage": one.progress.stage,
                "seconds": round(one.progress.seconds, 1),
                "share": round(one.progress.share, 3),
                "remaining_s": round(one.progress.remaining, 1),
            }
            for one in self._under_way.copy().values()
            if one.progress is not None
        ]

    def in_background(self) -> int:
        """How many compiles are under way in the background."""
        return sum(thread.is_alive() for thread, _ in self._background.copy().values())

    def deferred(self) -> int:
        """How many compiles wait until the host is idle."""
        return len(self._deferred)

    # Compiling ----------------------------------------------------------------------------------------------

    def start(
        self, request: Request, when_missing: WhenMissing, on_progress: OnProgress, rebuild_from: Entry | None
    ) -> Entry | Refused:
        """Compile a request's graph, now or later.

        Args:
            on_progress: follows a compile that the caller waits for. What it raises (the user's interrupt) goes
                through.
            rebuild_from: a graph of the same architecture for other sizes, for backends that start from one.

        Returns:
            The published entry; or why there is none (yet).
        """
        failed = self.failures.why_not(request)
        if failed is not None:
            return failed
        try:
            job = job_of(request, self._store.private.make_compiler_cache(), when_missing, rebuild_from)
        except CaptureError as error:
            reason = reasons.CaptureFailed(str(error))
            self.failures.remember_capture(request, reason)
            return _refused(reason, error)
        except LoadError as error:  # the other sizes' graph changed meanwhile
            log.debug("%s is not rebuilt: %s", request.label, error)
            return self.start(request, when_missing, on_progress, None)
        admitted = self._admit(request, job)
        if isinstance(admitted, Refused):
            return admitted
        if when_missing == "background":
            return self._start_in_background(request, admitted)
        return self._compile(request, admitted, on_progress)

    def _admit(self, request: Request, job: Job) -> Job | Refused:
        """The job as it may start now, or why it may not; then it is deferred until the host is idle, if that helps."""
        self._deferred.take(request.slot)
        if not self.limits.applies(request.device):
            return job
        need = admission.MemoryNeed(request.activation_bytes(), request.planned_bytes, job.workers)
        fits = admission.admit(need, self._free_bytes(request.device))
        if isinstance(fits, admission.TooLittle) and request.make_room is not None:
            request.make_room(fits.missing)
            fits = admission.admit(need, self._free_bytes(request.device))
        if isinstance(fits, admission.Fits):
            memory.give_back(request.device)
            return dataclasses.replace(job, workers=fits.workers)
        if request.idle is None:
            return fits.refused
        later = dataclasses.replace(job, niceness=_BACKGROUND_NICENESS)
        self._deferred.put(request.slot, _Waiting(request.without_module(), later, need))
        return Refused(reasons.CompileDeferred(fits.refused.reason))

    def _free_bytes(self, device: torch.device) -> int:
        """Bytes that another compile could take, those under way counted in full, whatever they have taken by now."""
        taken = sum(one.taken for one in self._under_way.copy().values() if one.device == device)
        return self.limits.free(device) - taken

    def _compile(self, request: Request, job: Job, on_progress: OnProgress) -> Entry | Refused:
        slot = request.slot
        taken = (1 + job.workers) * admission.CONTEXT_BYTES + request.activation_bytes()
        started = _UnderWay(request.key.component, request.label, request.device, taken)  # not the request: its model
        self._under_way[slot] = started
        notes, kind = self._store.notes, job.kind

        def follow(now: Progress) -> None:
            self._under_way[slot] = dataclasses.replace(started, progress=now)
            if request.watch is not None:
                request.watch(now)
            on_progress(now)

        compiling_in: Path | None = None
        lease = None if job.sibling is None else self._store.lease(job.sibling)
        if isinstance(lease, Reason):
            self._under_way.pop(slot, None)
            return Refused(lease, passing=True)
        try:
            with self._store.staging() as folder:
                compiling_in = folder
                expected = progress.expected(notes.read().compile_seconds.get(kind, {}), job.weights)
                paused = request.busy if job.niceness and request.device.type == "cuda" else None
                compiled = compile_in_child(job, folder, follow, self.limits.seconds, expected, paused)
                if not job.niceness:  # one that gives way takes as long as others leave it
                    notes.note_compile(kind, progress.per_weight(compiled.stages, job.weights))
                entry = self._store.publish(request.key, folder, new_entry(request, job, compiled))
        except CompileError as error:
            small = error.cause == "small"
            failed = reasons.BlockSmall(str(error)) if small else reasons.CompileFailed(str(error))
            self.failures.remember_compile(request, failed, error, compiling_in)
            return _refused(failed, error)
        except OSError as error:
            return _refused(self.failures.remember_unsaved(request, error, compiling_in), error)
        except MemoryError:  # in a thread of its own nobody else would say so
            return Refused(reasons.SystemMemoryShort(), passing=True)
        finally:
            self._under_way.pop(slot, None)
            if lease is not None:
                lease.release()
            if request.watch is not None:
                request.watch(None)
        self._store.keep_beside(entry, request.source)
        self.failures.forget(request)
        self._counters.compiles += 1
        log.info("compiled %s (%s) in %.1f s: %s", request.key.component, request.label, compiled.seconds, entry.folder)
        return entry

    # In the background --------------------------------------------------------------------------------------

    def _start_in_background(self, request: Request, job: Job) -> Refused:
        thread = threading.Thread(
            target=self._compile,
            args=(request.without_module(), job, lambda progress: None),
            name=f"onegraph-compile-{request.key.digest}",
            daemon=True,
        )
        self._background[request.slot] = (thread, time.perf_counter())
        thread.start()
        return Refused(reasons.CompilesInBackground())

    def _may_start(self, waiting: _Waiting) -> bool:
        """Whether the host is idle and a deferred compile fits: an idle host plans nothing."""
        idle, need = waiting.request.idle, dataclasses.replace(waiting.need, planned=0)
        if idle is None or not idle():
            return False
        return isinstance(admission.admit(need, self._free_bytes(waiting.request.device)), admission.Fits)

    def _start_deferred(self, slot: Slot, waiting: _Waiting) -> None:
        """Compile what was deferred, in the thread of such compiles. Raises _GiveWay when it is to wait again."""
        request = waiting.request
        fits = admission.admit(dataclasses.replace(waiting.need, planned=0), self._free_bytes(request.device))
        if isinstance(fits, admission.TooLittle):
            raise _GiveWay
        with self._claim(slot) as claimed:
            if not claimed:
                raise _GiveWay
            if self.failures.why_not(request) is not None or not self._is_needed(request):
                return
            self._background[slot] = (threading.current_thread(), time.perf_counter())

        def on_progress(progress: Progress) -> None:
            busy = request.idle is not None and not request.idle()
            if busy and self.limits.free(request.device) < waiting.need.planned:
                raise _GiveWay

        try:
            memory.give_back(request.device)
            self._compile(request, dataclasses.replace(waiting.job, workers=fits.workers), on_progress)
        finally:
            self._background.pop(slot, None)


def job_of(
    request: Request, cache: Path | None, when_missing: WhenMissing = "wait", rebuild_from: Entry | None = None
) -> Job:
    """Return the compile of a request's graph; `cache`, `rebuild_from`: see `Job`.

    Raises:
        CaptureError: the module holds something that cannot travel.
        LoadError: the graph to rebuild from has changed.
    """
    weights = len(list(request.module.parameters()))
    # On a CPU no further workers beside a run, which needs every core.
    alone = (
        rebuild_from is not None
        or request.calls is not None
        or (when_missing == "background" and request.device.type == "cpu")
    )
    return Job(
        component=request.key.component,
        backend=request.backend.name,
        device=str(request.device),
        shapes=request.shapes,
        export_shapes=request.export_shapes or request.shapes,
        example_sizes=request.example_sizes,
        skeleton=skeleton.dump(request.model or request.module, request.composites) if rebuild_from is None else b"",
        client=request.client,
        niceness=_BACKGROUND_NICENESS if when_missing == "background" else 0,
        sibling=rebuild_from,
        rebuild_from=rebuild_from.folder if rebuild_from else None,
        constants=constants_of(rebuild_from) if rebuild_from else (),
        workers=0 if alone else request.backend.workers(weights, request.device),
        cache=cache,
        weights=weights,
        block=None if request.calls is None else request.calls.to_json(),
    )


def new_entry(request: Request, job: Job, compiled: Compiled) -> NewEntry:
    """Return what is told of a graph that a job has compiled."""
    return NewEntry(
        label=request.label,
        files=compiled.files,
        constants=compiled.constants,
        cuda_graphs=compiled.cuda_graphs,
        outputs=compiled.outputs,
        call_rules=compiled.signature,
        code=job.sibling.manifest.code if job.sibling is not None else compiled.code,
        compile_seconds=compiled.seconds,
        made_by=__version__,
    )


def _refused(reason: Reason, error: Exception) -> Refused:
    refused = Refused(reason)
    log.debug("compiling failed: %s", refused.text)
    if error.__cause__ is not None:
        log.debug("what the compiling process printed last:\n%s", error.__cause__)
    return refused
