"""The process-wide registry of graphs: find, load or compile one, bind it, check it at its first use, run it.

Used alike by the ComfyUI host and by pipelines. One engine per process (`engine()`); graphs are shared by every
model of their architecture and rebound when another model runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from .. import __version__
from ..backends import Backend, Runner
from ..backends.cuda_graphs import Release
from ..common import memory, messages
from ..common.errors import BindError, CaptureError, CompileError, LoadError, MemoryShortError, in_brief, without_paths
from ..common.reasons import FunctionReplaced
from ..common.shapes import Refused, ShapeRange
from ..common.zeros import zeros
from ..compiler import export, progress, skeleton
from ..compiler.supervisor import Client, Job, Progress, compile_in_child
from ..graph_cache.compile_times import CompileTimes
from ..graph_cache.entry import Entry
from ..graph_cache.key import GraphKey
from ..graph_cache.lookup import Broken, Hit, Miss
from ..graph_cache.manifest import Manifest
from ..graph_cache.model_hash import ModelSource
from ..graph_cache.publish import NewEntry
from ..graph_cache.store import Store
from . import admission, binding, faithfulness, live_code, spot_check
from .admission import Limits
from .deferred import Deferred
from .out_of_memory import refused_when_exhausted, retried

log = logging.getLogger("onegraph.compiler")

_T = TypeVar("_T")
WhenMissing = Literal["wait", "background", "eager"]
LIVE_SHARE = 0.5  # of the memory that is free without them, graphs that hold memory may take this much
SLOWER = 0.95  # below this share of eager's speed a graph is not worth using; 5 % is measurement noise
_SLOW_PROCESSES = 3  # that many processes must find a graph slower than eager before it is believed
# Beyond that a first use is not measured again: calls that long are hardly noisy. On a GPU only the first ones take
# long, which load kernels and plans.
_MEASURING_SECONDS = {"cpu": 2.0, "cuda": 20.0}
_KILLED_RETRIES = 1
_BACKGROUND_NICENESS = 10  # the run beside which it compiles goes first


@dataclass(frozen=True)
class Request:
    """What a client wants to run compiled.

    Attributes:
        module: the live module.
        prefix: name under which the client's wrapper holds `module`, with a dot: graph weights are `prefix` + name.
        hint: sizes of the call at hand, by dimension name.
        capture: a wider range to capture under, for backends that rebuild graphs for other sizes from a kept one.
        neighbours: folders whose checkpoints may have graphs of the same architecture.
        environment: versions of what surrounds a graph and is no part of its key, e.g. the host's: when they change, a
            graph is compared with eager again.
        planned_bytes: on the device, that the host will take for this run besides what it has.
        call_bytes: on the device, that a call at these sizes takes by the host's own estimate; 0: it has none.
        idle: tells whether the host has nothing to do. None: it cannot tell, so no compile waits for that.
        busy: tells whether the host computes or is about to. A compile for a GPU that gives way stands still meanwhile:
            it slows a run that launches kernels by 40 % (SDXL eager on an H200), whatever its priority.
    """

    key: GraphKey
    source: ModelSource
    shapes: ShapeRange
    label: str
    module: torch.nn.Module
    prefix: str
    backend: Backend
    device: torch.device
    hint: Mapping[str, int]
    client: Client
    neighbours: tuple[Path, ...] = ()
    capture: ShapeRange | None = None
    environment: str = ""
    planned_bytes: int = 0
    call_bytes: int = 0
    idle: Callable[[], bool] | None = None
    busy: Callable[[], bool] | None = None


@dataclass
class Counters:
    """What this process did so far; tests and the demo read it."""

    compiles: int = 0
    restores: int = 0
    preloads: int = 0  # graphs loaded and warmed up ahead of the first call
    binds: int = 0
    compiled_calls: int = 0
    eager_calls: int = 0
    spot_checks: int = 0  # calls compared with eager after a graph's first use
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Result:
    """What a call of a graph gave. `note` is set when the call ran eager after all (first use failed)."""

    output: torch.Tensor
    note: str | None = None


class Graph:
    """A loaded graph with its entry, its binding and what its first use showed."""

    def __init__(
        self,
        entry: Entry,
        runner: Runner,
        shapes: ShapeRange,
        device: torch.device,
        prefix: str,
        store: Store,
        origin: Literal["compiled", "restored"],
        environment: str = "",
        make_room: Callable[[], object] = lambda: None,
    ) -> None:
        """`make_room` has other graphs give back what only makes calls faster."""
        self.entry = entry
        self.origin = origin
        self.shapes = shapes
        self.device = device
        self.retired: str | None = None
        self.fresh = True  # not called yet in this process
        code = entry.manifest.code
        self.code = live_code.LiveCode(code) if code is not None else None
        self.used = time.monotonic()
        self._runner = runner
        self._prefix = prefix
        self._store = store
        self._make_room = make_room
        self._constants = entry.manifest.constants
        self._binding: binding.Binding | None = None
        self._version: int | None = None  # of the module when its weights were checked in full
        self._lock = threading.Lock()
        if runner.replayed is not None and store.died_while_capturing(entry):
            runner.replayed.forbid()
        self._schedule = spot_check.Schedule(spot_check.every())
        self.outcome = store.first_use(entry)
        if self.outcome.environment != environment:
            self.outcome = self.outcome.model_copy(update={"environment": environment, "checked": {}})
        if self.slower() is not None and self.outcome.slow_processes < _SLOW_PROCESSES:
            # Measured on a busy machine, perhaps: a fast graph is trusted at once, a slow one after some processes.
            self.outcome = self.outcome.model_copy(update={"eager_ms": None, "compiled_ms": None})

    @property
    def held_bytes(self) -> int:
        """Bytes it keeps besides the weights, also after `close` where they do not come back."""
        return self._runner.held_bytes

    def close(self) -> None:
        """Give the memory back; the graph cannot be called any more."""
        with self._lock:
            self.retired = self.retired or "the graph was closed to make room for others"
            self._binding = None
            self._runner.close()

    @property
    def captured_bytes(self) -> int:
        """Bytes that captured CUDA graphs of its calls hold."""
        return 0 if self._runner.replayed is None else self._runner.replayed.held_bytes

    def release_captures(self, why: Release) -> int:
        """Give the memory of captured calls back, unless a call is under way just now; the bytes.

        Never waits: the host may ask for memory in the midst of a call of this very graph.
        """
        if self._runner.replayed is None or not self._lock.acquire(blocking=False):
            return 0
        try:
            return self._runner.replayed.release(why)
        finally:
            self._lock.release()

    def release_orphan(self) -> None:
        """Let go of the weights of a model that is gone, for backends whose runners hold what they are bound to.

        Never waits: a graph that is called or warmed up just now is nobody's orphan.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._binding is not None and self._binding.module() is None and self._runner.held_bytes:
                self._binding = None
                self._runner.close()  # binding it again sets it up again
        finally:
            self._lock.release()

    def trim(self, available: int) -> None:
        """Give back what only makes calls faster, if it is much beside the bytes that are free."""
        with self._lock:
            if self._runner.replayed is not None:
                self._runner.replayed.trim(available)

    def slower(self) -> str | None:
        """Why eager is kept although the graph is right, or None."""
        speedup = self.outcome.speedup
        if speedup is not None and speedup < SLOWER:
            return f"the compiled graph is slower than eager here ({speedup:.2f}x)"
        return None

    def replaced(self) -> str | None:
        """Why the functions in place now are not those that the graph was captured from, or None."""
        difference = self.code.difference() if self.code is not None else None
        return messages.text(difference) if difference is not None else None

    @refused_when_exhausted
    def call(
        self,
        module: torch.nn.Module,
        inputs: tuple[torch.Tensor, ...],
        sizes: Mapping[str, int],
        eager: Callable[..., torch.Tensor],
        counters: Counters,
        part: int | None = None,
    ) -> Result | Refused:
        """Run an admitted call with the weights `module` has right now.

        Args:
            inputs: as in the shape range, contiguous, on the graph's device.
            sizes: from `ShapeRange.admits`.
            eager: the same function of the inputs without a graph, at any size: to compare with at the very first
                use on this machine and now and then later.
            part: number of a call of a run between whose calls nobody is expected to move weights: only some of them
                are looked at. None: all of them.
        """
        with self._lock:
            if self.retired is not None:
                return Refused(self.retired)
            slower = self.slower()
            if slower is not None:
                return Refused(slower)
            self.used = time.monotonic()
            group = ",".join(name for name, size in sorted(sizes.items()) if size == 1) or "n"
            with self._marked(inputs):
                known = self._binding
                if known is None or not (known.holds(module) if part is None else known.holds_part(module, part)):
                    bound = self._bind(module)
                    if isinstance(bound, Refused):
                        return bound
                    counters.binds += 1
                if group not in self.outcome.checked or self.outcome.compiled_ms is None:
                    with self._uncaptured():
                        result = self._first_use(group, inputs, sizes, eager)
                else:
                    result = Result(self._run(inputs))
                    if self._schedule.due():
                        counters.spot_checks += 1
                        with self._uncaptured():
                            result = self._spot_check(inputs, result.output, eager)
            self.fresh = False
            slower = self.slower()
            if slower is not None and self._runner.held_bytes:
                self.retired = slower  # not used in this process, so its memory goes back as far as it does
                self._runner.close()
            if result.note is None:
                counters.compiled_calls += 1
            return result

    def _run(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The runner's call, once more with more room where memory ran out."""

        def make_room() -> None:
            if self._runner.replayed is not None:
                self._runner.replayed.release("needed")
            self._make_room()

        return retried(lambda: self._runner(*inputs), make_room, self.device)

    def _uncaptured(self) -> contextlib.AbstractContextManager[None]:
        """While this lasts calls are only made: a capture would spoil what is measured."""
        return contextlib.nullcontext() if self._runner.replayed is None else self._runner.replayed.paused()

    def warm(self, inputs: tuple[torch.Tensor, ...]) -> None:
        """Run on weights of zeros, so that kernels and libraries are on the device before the first call needs them."""
        with self._lock:
            if not self.fresh or self._binding is not None or self.retired is not None:
                return
            with self._store.loading(self.entry):
                weights = zeros(self._constants, self.device)
                try:
                    self._runner.bind(weights)
                    self._runner(*inputs)
                    if self.device.type == "cuda":
                        torch.cuda.current_stream(self.device).synchronize()
                finally:
                    self._runner.close()

    def _marked(self, inputs: tuple[torch.Tensor, ...]) -> contextlib.AbstractContextManager[None]:
        """A crash marker around the calls that could take the process down."""
        if self.fresh:
            return self._store.loading(self.entry)
        if self._runner.replayed is not None and self._runner.replayed.due(inputs):
            return self._store.capturing(self.entry)
        return contextlib.nullcontext()

    def rebind(self, module: torch.nn.Module) -> Refused | None:
        """Check every weight and bind again, e.g. at the start of a run."""
        with self._lock:
            bound = self._bind(module)
            return bound if isinstance(bound, Refused) else None

    def start_run(self, version: int | None) -> None:
        """A run begins, whose weights are to be checked in full unless they are known to be like those before.

        Args:
            version: a number by the metadata of the module's weights; None: nobody knows.
        """
        with self._lock:
            if version is None or version != self._version or not self._runner.reads_in_place:
                self._binding = None
            self._version = version

    def _bind(self, module: torch.nn.Module) -> binding.Binding | Refused:
        self._binding = None
        try:
            bound = binding.bind(self._runner, module, self._constants, self.device, self._prefix)
        except BindError as error:
            return Refused(str(error))
        if isinstance(bound, binding.Binding):
            self._binding = bound
        return bound

    def _first_use(
        self,
        group: str,
        inputs: tuple[torch.Tensor, ...],
        sizes: Mapping[str, int],
        eager: Callable[..., torch.Tensor],
    ) -> Result:
        """Compare with eager on real inputs, time both, record the outcome beside the manifest."""
        started = time.perf_counter()
        compiled_ms, output = self._timed(lambda: self._run(inputs))
        eager_ms, reference = self._timed(lambda: eager(*inputs))
        verdict = faithfulness.compare(output, reference)
        if isinstance(verdict, faithfulness.Unfaithful):
            return self._retire(f"the graph failed its first-use check: {verdict.reason}", reference)
        outcome = self.outcome.model_copy(update={"checked": {**self.outcome.checked, group: verdict.rel_l2}})
        if outcome.compiled_ms is None:
            # Set-up at a first call and noise only ever add time: a second pair, and more while eager seems faster.
            for _ in range(3):
                if time.perf_counter() - started > _MEASURING_SECONDS[self.device.type]:
                    break
                compiled_ms = min(compiled_ms, self._timed(lambda: self._run(inputs))[0])
                eager_ms = min(eager_ms, self._timed(lambda: eager(*inputs))[0])
                if compiled_ms <= eager_ms:
                    break
            size = ", ".join(f"{name} {value}" for name, value in sizes.items())
            outcome = outcome.model_copy(update={"eager_ms": eager_ms, "compiled_ms": compiled_ms, "size": size})
            slow = outcome.slow_processes + 1 if eager_ms / compiled_ms < SLOWER else 0
            outcome = outcome.model_copy(update={"slow_processes": slow})
        self.outcome = outcome
        self._store.remember(self.entry, outcome)
        return Result(output)

    def _spot_check(
        self, inputs: tuple[torch.Tensor, ...], output: torch.Tensor, eager: Callable[..., torch.Tensor]
    ) -> Result:
        """Compare a fraction of a later call with eager."""
        seconds, (found, reference) = self._timed(
            lambda: spot_check.pair(self.shapes, inputs, output, self._runner, eager)
        )
        self._schedule.checked(seconds / 1e3)
        verdict = faithfulness.compare(found, reference)
        if isinstance(verdict, faithfulness.Unfaithful):
            return self._retire(f"the graph failed a later check: {verdict.reason}", eager(*inputs))
        return Result(output)

    def _retire(self, reason: str, instead: torch.Tensor) -> Result:
        self.retired = reason
        self._runner.close()
        log.warning("%s: %s", self.entry.folder.name, reason)
        self._store.quarantine(self.entry.folder)
        return Result(instead, reason)

    def _timed(self, call: Callable[[], _T]) -> tuple[float, _T]:
        def wait() -> None:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

        wait()
        started = time.perf_counter()
        output = call()
        wait()
        return 1e3 * (time.perf_counter() - started), output


@dataclass(frozen=True)
class _PutOff:
    """A compile that waits; its request holds no model."""

    request: Request
    job: Job
    need: admission.Need


class _GiveWay(Exception):
    """The host has begun something and needs the memory of a compile that was put off."""


Place = tuple[str, str]  # key digest, device


class Engine:
    """Graphs of this process by key and device, compiles under way, and failures to remember.

    Locks: one for each key and device, held while a graph is obtained, also during its compile; the engine's own one,
    inside it, is held for moments only. Reports, `release_captures` and the like take neither.
    """

    def __init__(self, store: Store | None = None, limits: Limits | None = None) -> None:
        self.store = store or Store()
        self.limits = limits or Limits()
        self.counters = Counters()
        self._graphs: dict[tuple[str, str], Graph] = {}
        self._closed: list[Graph] = []  # that still hold memory, because their backend does not give it back yet
        self._failures: dict[tuple[str, str], str] = {}
        self._refused_ahead: dict[tuple[str, str], str] = {}  # what the next run is to say
        self._kills: Counter[tuple[str, str]] = Counter()
        self._background: dict[tuple[str, str], tuple[threading.Thread, float]] = {}
        self._shortages: dict[Place, admission.Shortage] = {}
        self._compiling: dict[Place, tuple[torch.device, int]] = {}  # bytes that compiles under way take
        self._progress: dict[Place, tuple[str, str, Progress]] = {}  # component, label
        self._deferred: Deferred[Place, _PutOff] = Deferred(
            self._may_start, self._start_deferred, self.limits.poll_seconds
        )
        self._obtaining: dict[Place, threading.RLock] = {}
        self._lock = threading.RLock()

    def loaded(self, key: GraphKey, device: torch.device) -> Graph | None:
        """The graph, if this process has it already."""
        return self._graphs.get((key.digest, str(device)))

    def has(self, request: Request) -> bool:
        """Whether a graph for the request is loaded or kept, so that nothing needs compiling."""
        if self.loaded(request.key, request.device) is not None:
            return True
        found = self.store.find(request.key, request.source, request.neighbours, _code_difference)
        return isinstance(found, Hit)

    def retire(self, request: Request, reason: str) -> None:
        """A graph turned out wrong in use: nobody uses it again, in this process or another."""
        graph = self.loaded(request.key, request.device)
        if graph is not None and graph.retired is None:
            graph.retired = reason
            graph.close()
            log.warning("%s: %s", graph.entry.folder.name, reason)
            self.store.quarantine(graph.entry.folder)

    def obtain(self, request: Request, when_missing: WhenMissing, watch: Callable[[Progress], None]) -> Graph | Refused:
        """The graph for a request: loaded before, restored from the store, or compiled; else the reason why not.

        Never raises for anything that goes wrong with the graph. What `watch` raises (the user's interrupt) goes
        through, with nothing left behind.
        """
        place = (request.key.digest, str(request.device))
        with self._one(place):
            with self._lock:
                known = self._known(place)
                if known is not None:
                    return known
                reason = self._refused_ahead.pop(place, None)
                if reason is not None:
                    return Refused(reason)
            return self._restore_or_compile(place, request, when_missing, watch)

    def _one(self, place: Place) -> threading.RLock:
        """What is held while a graph is obtained, so that nobody else compiles the same."""
        with self._lock:
            return self._obtaining.setdefault(place, threading.RLock())

    def preload(self, request: Request, room: int) -> None:
        """Load a kept graph and warm it up, in a thread beside whatever comes before its first call. Never raises.

        Args:
            room: bytes that must still be free to warm it up.
        """
        device, place = request.device, (request.key.digest, str(request.device))
        one = self._one(place)
        # Whoever else obtains this graph may be compiling it, and a process that ends waits for this thread.
        if not one.acquire(blocking=False):
            return
        try:
            on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
            with torch.inference_mode(), on_device:  # both are a thread's own
                try:
                    with self._lock:
                        if self._known(place) is not None or place in self._refused_ahead:
                            return
                        restored = self._restore(place, request)
                        if isinstance(restored, Refused) and not restored.passing:  # nobody listens here
                            self._refused_ahead[place] = restored.reason
                finally:
                    one.release()
                if isinstance(restored, Graph) and memory.unused_bytes(device) >= room:
                    restored.warm(export.example_inputs(request.shapes, request.hint, device))
                    with self._lock:
                        self.counters.preloads += 1
        except Exception:  # the first call does without
            log.debug("a graph could not be taken up ahead", exc_info=True)

    def _known(self, place: tuple[str, str]) -> Graph | Refused | None:
        """The graph, or the reason why there is none, that this process knows already."""
        graph = self._graphs.get(place)
        if graph is not None:
            return graph if graph.retired is None else Refused(graph.retired)
        if place in self._failures:
            return Refused(self._failures[place])
        background = self._background.get(place)
        if background is not None and background[0].is_alive():
            seconds = time.perf_counter() - background[1]
            under_way = self._progress.get(place)
            how_far = f", {under_way[-1].share:.0%}" if under_way else ""
            return Refused(f"still compiling in the background ({seconds:.0f} s so far{how_far})")
        return None

    def _restore(self, place: tuple[str, str], request: Request) -> Graph | Refused | Miss:
        """The graph from the store."""
        runs = request.backend.can_run(request.device)
        if not runs.ok:
            return Refused(runs.reason)
        replaced: list[FunctionReplaced] = []

        def differs(manifest: Manifest) -> live_code.Difference | None:
            difference = _code_difference(manifest)
            if isinstance(difference, FunctionReplaced):
                replaced.append(difference)
            return difference

        found = self.store.find(request.key, request.source, request.neighbours, differs)
        if isinstance(found, Broken):
            return Refused(f"{without_paths(messages.text(found.reason))}; a later run compiles it anew")
        if isinstance(found, Miss):
            return Refused(messages.text(replaced[0]), passing=True) if replaced else found
        graph = self._load(place, request, found.entry, "restored")
        self.counters.restores += isinstance(graph, Graph)
        return graph

    def _restore_or_compile(
        self,
        place: tuple[str, str],
        request: Request,
        when_missing: WhenMissing,
        watch: Callable[[Progress], None],
    ) -> Graph | Refused:
        with self._lock:
            restored = self._restore(place, request)
        if not isinstance(restored, Miss):
            return restored
        if when_missing == "eager":
            return Refused(messages.text(restored.reason))
        compiles = request.backend.can_compile(request.device)
        if not compiles.ok:
            return Refused(compiles.reason)
        foreign = live_code.foreign_method(request.module)
        if foreign is not None:  # the graph would be another model's, and could not be used
            return Refused(messages.text(foreign), passing=True)
        kept = None
        if request.backend.rebuilds:
            kept = self.store.sibling(request.key, request.source, request.neighbours, _code_difference)
        try:
            job = Job(
                request.key.component,
                request.backend.name,
                str(request.device),
                request.shapes,
                request.capture or request.shapes,
                request.hint,
                skeleton.dump(request.module) if kept is None else b"",
                request.client,
                _BACKGROUND_NICENESS if when_missing == "background" else 0,
                kept.folder if kept else None,
                kept.manifest.constants if kept else (),
                kept.manifest.code if kept else None,
                0 if kept else self._helpers(request, when_missing),
                self.store.compiler_cache,
                len(list(request.module.parameters())),
            )
        except CaptureError as error:
            return self._failed(place, str(error), error)
        admitted = self._admit(place, request, job)
        if isinstance(admitted, Refused):
            return admitted
        if when_missing == "background":
            return self._compile_in_background(place, request, admitted)
        compiled = self._compile(place, request, admitted, watch)
        if isinstance(compiled, Refused):
            return compiled
        difference = _code_difference(compiled.manifest)
        if isinstance(difference, FunctionReplaced):
            return Refused(messages.text(difference), passing=True)
        if difference is not None:
            return self._failed(place, f"{messages.text(difference)}; restart ComfyUI to use the graph", None)
        with self._lock:
            return self._load(place, request, compiled, "compiled")

    def _helpers(self, request: Request, when_missing: WhenMissing) -> int:
        """How many further processes compile: on a CPU none beside a run, which has need of every core."""
        if when_missing == "background" and request.device.type == "cpu":
            return 0
        return request.backend.helpers(len(list(request.module.parameters())), request.device)

    def _admit(self, place: Place, request: Request, job: Job) -> Job | Refused:
        """The job as it may start now, or why it may not; then it is put off until the host is idle, if that helps."""
        self._deferred.take(place)
        short = self._shortages.get(place)
        refused = None if short is None else short.again(self.limits.free(short.device))
        if refused is not None:
            return refused
        if not self.limits.applies(request.device):
            return job
        need = admission.Need(_calls_bytes(request), request.planned_bytes, job.helpers)
        fits = admission.admit(need, self._free_bytes(request.device))
        if isinstance(fits, admission.Fits):
            memory.give_back(request.device)
            return dataclasses.replace(job, helpers=fits.helpers)
        if request.idle is None:
            return fits
        later = dataclasses.replace(job, niceness=_BACKGROUND_NICENESS)
        self._deferred.put(place, _PutOff(_without_module(request), later, need))
        return Refused(f"{fits.reason}; it compiles when the queue is empty")

    def _free_bytes(self, device: torch.device) -> int:
        """Bytes that another compile could take, those under way counted in full, whatever they have taken by now."""
        under_way = self._compiling.copy().values()
        return self.limits.free(device) - sum(taken for where, taken in under_way if where == device)

    def _may_start(self, waiting: _PutOff) -> bool:
        """Whether the host is idle and a compile that was put off fits: an idle host plans nothing."""
        idle, need = waiting.request.idle, dataclasses.replace(waiting.need, planned=0)
        if idle is None or not idle():
            return False
        return isinstance(admission.admit(need, self._free_bytes(waiting.request.device)), admission.Fits)

    def _start_deferred(self, place: Place, waiting: _PutOff) -> None:
        """Compile what was put off, in the thread of such compiles. Raises _GiveWay when it is to wait again."""
        request, one = waiting.request, self._one(place)
        need = dataclasses.replace(waiting.need, planned=0)
        fits = admission.admit(need, self._free_bytes(request.device))
        if isinstance(fits, Refused) or not one.acquire(blocking=False):
            raise _GiveWay
        try:
            with self._lock:
                if place in self._graphs or place in self._failures or self.has(request):
                    return
                self._background[place] = (threading.current_thread(), time.perf_counter())
        finally:
            one.release()

        def watch(progress: Progress) -> None:
            busy = request.idle is not None and not request.idle()
            if busy and self.limits.free(request.device) < waiting.need.planned:
                raise _GiveWay

        try:
            memory.give_back(request.device)
            self._compile(place, request, dataclasses.replace(waiting.job, helpers=fits.helpers), watch)
        finally:
            self._background.pop(place, None)

    def _load(
        self, place: tuple[str, str], request: Request, entry: Entry, origin: Literal["compiled", "restored"]
    ) -> Graph | Refused:
        try:
            crowded = self._make_room(request, entry)
            if crowded is not None:
                return Refused(crowded)
            with self.store.loading(entry):
                runner = request.backend.load(entry.folder, request.device)
        except MemoryShortError as error:
            return Refused(str(error))
        except LoadError as error:
            self.store.quarantine(entry.folder)
            return Refused(str(error))
        room = functools.partial(self.release_captures, request.device, "needed")
        graph = Graph(
            entry, runner, request.shapes, request.device, request.prefix, self.store, origin, request.environment, room
        )
        self._graphs[place] = graph
        return graph

    def release_orphans(self) -> None:
        """Let go of models that are gone. Called when a run starts, for a collector's callback could deadlock."""
        for graph in self._graphs.copy().values():
            graph.release_orphan()

    def captured_bytes(self, device: torch.device | None = None) -> int:
        """Bytes that captured CUDA graphs hold, on a device or on all."""
        graphs = self._graphs.copy().values()
        return sum(graph.captured_bytes for graph in graphs if device is None or graph.device == device)

    def release_captures(self, device: torch.device, why: Release) -> int:
        """Give back what captured CUDA graphs hold on a device; the bytes. Never waits and never raises."""
        released = 0
        for graph in self._graphs.copy().values():
            if graph.device == device:
                try:
                    released += graph.release_captures(why)
                except Exception:  # the host asks for memory in the midst of its own work
                    log.exception("captured CUDA graphs could not be released")
        return released

    def trim(self, device: torch.device) -> None:
        """Have graphs give back what only makes calls faster, where memory is short. Called when a run ends."""
        graphs = [graph for graph in self._graphs.copy().values() if graph.device == device and graph.held_bytes]
        if graphs:
            available = memory.unused_bytes(device) - sum(graph.held_bytes for graph in graphs)
            for graph in graphs:
                graph.trim(available)

    def held_bytes(self) -> int:
        """Bytes that loaded graphs keep besides the weights, with what closed ones did not give back."""
        self._closed = [graph for graph in self._closed if graph.held_bytes]
        return sum(graph.held_bytes for graph in (*self._closed, *self._graphs.copy().values()))

    def _make_room(self, request: Request, entry: Entry) -> str | None:
        """Close graphs that were not used for longest until this one fits, or say why it does not."""
        needed = request.backend.estimate_memory(entry.folder)
        if not needed:
            return None
        while True:
            held = self.held_bytes()
            left = int(LIVE_SHARE * (memory.available_bytes(request.device) + held)) - held
            if needed <= left:
                return None
            idle = [(graph.used, place) for place, graph in self._graphs.items() if graph.held_bytes]
            if not idle or needed > left + held - sum(graph.held_bytes for graph in self._closed):
                return (
                    f"{request.backend.name} would hold {memory.in_words(needed)} for {request.label}, "
                    f"and {memory.in_words(max(left, 0))} are left for graphs"
                )
            graph = self._graphs.pop(min(idle)[1])
            graph.close()
            self._closed.append(graph)
            log.info("closed %s to make room for %s", graph.entry.folder.name, request.label)

    def _compile(
        self, place: tuple[str, str], request: Request, job: Job, watch: Callable[[Progress], None]
    ) -> Entry | Refused:
        self._compiling[place] = (request.device, self._taken_bytes(request, job))
        times, kind = CompileTimes(self.store.compile_times), _compile_kind(request, job)
        component, label = request.key.component, request.label  # not the request: it holds the model

        def follow(progress: Progress) -> None:
            self._progress[place] = (component, label, progress)
            watch(progress)

        try:
            with self.store.staging(request.source) as staging:
                expected = progress.expected(times.of(kind), job.weights)
                paused = request.busy if job.niceness and request.device.type == "cuda" else None
                compiled = compile_in_child(job, staging, follow, self.limits.seconds, expected, paused)
                if not job.niceness:  # one that gives way takes as long as others leave it
                    times.remember(kind, progress.per_weight(compiled.stages, job.weights))
                made = NewEntry(
                    label=request.label,
                    files=compiled.files,
                    constants=compiled.constants,
                    compile_seconds=compiled.seconds,
                    made_by=__version__,
                    code=job.code if job.kept else compiled.code,
                )
                entry = self.store.publish(request.key, staging, made)
        except CompileError as error:
            before = self._shortages.get(place)
            short = admission.shortage(str(error), error.cause, request.device, self.limits, before)
            if short is not None:
                self._shortages[place] = short
                return self._failed(None, str(error), error)
            self._kills[place] += not error.lasting
            lasting = error.lasting or self._kills[place] > _KILLED_RETRIES
            return self._failed(place if lasting else None, str(error), error)
        except OSError as error:
            return self._failed(None, f"The graph could not be saved ({in_brief(error)}); free some disk space.", error)
        finally:
            self._compiling.pop(place, None)
            self._progress.pop(place, None)
        self._shortages.pop(place, None)
        self.counters.compiles += 1
        log.info("compiled %s (%s) in %.1f s: %s", request.key.component, request.label, compiled.seconds, entry.folder)
        return entry

    def _taken_bytes(self, request: Request, job: Job) -> int:
        """Bytes on the device that a compile takes."""
        return (1 + job.helpers) * admission.CONTEXT_BYTES + _calls_bytes(request)

    def _failed(self, place: tuple[str, str] | None, reason: str, error: Exception | None) -> Refused:
        log.debug("compiling failed: %s", reason)
        if error is not None and error.__cause__ is not None:
            log.debug("what the compiling process printed last:\n%s", error.__cause__)
        if place is not None:
            self._failures[place] = reason
        return Refused(reason)

    def _compile_in_background(self, place: tuple[str, str], request: Request, job: Job) -> Refused:
        thread = threading.Thread(
            target=self._compile,
            args=(place, _without_module(request), job, lambda progress: None),
            name=f"onegraph-compile-{place[0]}",
            daemon=True,
        )
        self._background[place] = (thread, time.perf_counter())
        thread.start()
        return Refused("compiling in the background; a later run uses the graph")

    def compiles_under_way(self) -> list[dict[str, Any]]:
        """What compiles, how far it is (`share` of 1) and how long it probably still takes (`remaining_s`)."""
        return [
            {
                "component": component,
                "label": label,
                "stage": progress.stage,
                "seconds": round(progress.seconds, 1),
                "share": round(progress.share, 3),
                "remaining_s": round(progress.remaining, 1),
            }
            for component, label, progress in self._progress.copy().values()
        ]

    def background_compiles(self) -> int:
        """How many compiles are under way in the background."""
        return sum(thread.is_alive() for thread, _ in self._background.copy().values())

    def deferred_compiles(self) -> int:
        """How many compiles wait until the host is idle."""
        return len(self._deferred)


def _compile_kind(request: Request, job: Job) -> str:
    """What compiles have in common that take about as long for each weight."""
    exact = "exact" if all(dim.exact for dim in request.shapes.dims) else "any size"
    return f"{job.component}, {job.backend}, {request.device.type}, {exact}, {job.helpers} helpers"


def _without_module(request: Request) -> Request:
    """The request as a compile needs it, which must not keep a model alive."""
    return dataclasses.replace(request, module=torch.nn.Module(), call_bytes=_calls_bytes(request))


def _calls_bytes(request: Request) -> int:
    """Activations of a compile's trial calls: the host's estimate, or ours where that is higher."""
    return max(admission.calls_bytes(request.shapes, request.hint, request.module), request.call_bytes)


def _code_difference(manifest: Manifest) -> live_code.Difference | None:
    """What differs between the functions in place and those that a graph was captured from."""
    return live_code.LiveCode(manifest.code).difference() if manifest.code is not None else None


_engine: Engine | None = None
_engine_lock = threading.Lock()


def engine() -> Engine:
    """The process's one engine."""
    global _engine
    with _engine_lock:
        if _engine is None:
            _engine = Engine()
        return _engine
