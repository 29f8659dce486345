"""A graph loaded into this process: its binding, its first use, its CUDA graphs."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import torch

from ...backends import Runner
from ...backends.cuda_graphs import Release
from ...common import reasons
from ...common.errors import BindError
from ...common.log import logger
from ...common.outputs import Output, tensors_of
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.zeros import zeros
from ...graph_cache.entry import Entry
from ...graph_cache.first_use_results import FirstUse
from ...graph_cache.lookup import Broken
from ...graph_cache.store import Store
from ..counters import Counters
from ..guards import code_guard
from ..request import Request
from . import binding, call_thread, out_of_memory
from .bound_runners import BoundRunner, BoundRunners, run_once
from .call_context import PLAIN, CallContext
from .captures import Captures
from .first_use import CheckFailed, Comparison, FirstUseCheck
from .graph_options import GraphOptions
from .spot_check import SpotChecks

log = logger("runtime")

Origin = Literal["compiled", "restored"]


class Result(NamedTuple):
    """What a call of a graph gave. `refusal` is set when the output is eager's after all."""

    output: Output
    refusal: Reason | None = None


class Changed:
    """In place of a result: what the caller last checked has changed, so it checks again and calls once more.

    Nothing of such a call was handed out or written to an argument.
    """


CHANGED = Changed()


class LoadedGraph:
    """A loaded graph with its entry, its bindings and its first-use result.

    Args:
        entry: where it came from.
        runner: the backend's, which this object owns.
        request: for which it was loaded. Its module is not kept.
        store: the entry's.
        origin: whether this process compiled it.
    """

    def __init__(
        self,
        entry: Entry,
        runner: Runner,
        request: Request,
        store: Store,
        origin: Origin,
        options: GraphOptions,
    ) -> None:
        self.entry = entry
        self.origin = origin
        self.shapes = request.shapes
        self.device = request.device
        self.retired: Reason | None = None
        self.fresh = True  # not called yet in this process
        self.instead_of: Reason | None = None  # why one that was there could not be loaded
        self.code = code_guard.CodeGuard(entry.manifest.code) if entry.manifest.code is not None else None
        self.used = time.monotonic()
        in_one = options.another is None and request.device.type in options.policy.one_thread_on
        if in_one and runner.cuda_graphs is not None:  # OneFlow keeps its own account of threads
            runner = call_thread.InOneThread(runner, request.device)
        self._runners = BoundRunners(runner, options.another)
        self._prefix = request.prefix
        self._store = store
        self._make_room = options.make_room
        self._remember_wrong = options.remember_wrong
        self._constants = options.constants
        self._lease = options.lease
        self._lock = threading.Lock()
        self.first_use = FirstUseCheck(store, entry, options.policy, request.device, request.environment)
        if options.compare_anew:
            self.first_use.result = FirstUse(environment=request.environment)
        self._alone = options.another is None
        self.captures = Captures(
            runner.cuda_graphs, self.first_use, alone=self._alone,
            shown=entry.manifest.cuda_graphs or bool(self.first_use.result.captured),
            permitted=options.policy.captures and not store.markers.died_while_capturing(entry.folder),
            marker=functools.partial(store.markers.capturing, entry.folder),
        )  # fmt: skip
        self._checks_behind = request.device.type in options.policy.checks_behind_on
        self._checks = SpotChecks(self.shapes, self.device, self.first_use, options.policy.checks_share)

    # Memory -------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes it keeps besides the weights, also after `close` where they do not come back."""
        return self._runners.held_bytes

    @property
    def captured_bytes(self) -> int:
        """Bytes that the CUDA graphs of its calls hold."""
        return self.captures.held_bytes

    def close(self) -> None:
        """Release the memory; the graph cannot be called any more."""
        with self._lock:
            self.retired = self.retired or reasons.GraphClosed()
            self._runners.close()
            self._lease.release()

    def release_captures(self, why: Release) -> int:
        """Release the memory of captured calls, unless a call is under way just now; the bytes.

        Never waits: the host may ask for memory in the midst of a call of this very graph.
        """
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            return self.captures.release(why)
        finally:
            self._lock.release()

    def release_orphan(self) -> None:
        """Release the weights of a model that is gone, for backends whose runners hold what they are bound to.

        Never waits: a graph that is called or warmed up just now is nobody's orphan.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._runners.release_orphans()
        finally:
            self._lock.release()

    def quarantine(self, reason: Reason) -> None:
        """Close it for good: a comparison showed what its result cannot be told by."""
        with self._lock:
            self._retire(CheckFailed(reason, ()))

    def trim(self, available: int) -> None:
        """Release what only makes calls faster, if it is much beside the bytes that are free."""
        with self._lock:
            self.captures.trim(available)

    # Calls --------------------------------------------------------------------------------------------------

    def replaced(self, moment: object = None) -> Reason | None:
        """Why the functions in place now are not those that the graph was captured from, or None.

        `moment`: see `CodeGuard.difference`.
        """
        return self.code.difference(moment) if self.code is not None else None

    def start_run(self, module: torch.nn.Module, version: int | None) -> None:
        """Begin a run of a module, whose weights are checked in full unless they are known to be like those before.

        Args:
            version: a number by the metadata of the module's weights; None: nobody knows.
        """
        with self._lock:
            bound = self._runners.of(module)
            if version is None or version != bound.version or not bound.runner.reads_in_place:
                bound.binding = None
            bound.version = version

    def call(
        self,
        module: torch.nn.Module,
        inputs: tuple[torch.Tensor, ...],
        sizes: Mapping[str, int],
        eager: Callable[..., Output],
        counters: Counters,
        context: CallContext = PLAIN,
    ) -> Result | Refused | Changed:
        """Run an admitted call with the weights `module` has right now.

        Args:
            inputs: as in the shape range, contiguous, on the graph's device.
            sizes: the values of its named dimensions, or of its rules' symbols.
            eager: the same function of the inputs without a graph, at any size: to compare with at the very first
                use on this machine and now and then later.
        """
        held, unchanged, compared = context.held or binding.Held(), context.unchanged, context.compared
        with self._lock:
            refusal = self.retired or self.first_use.slower()
            if refusal is not None:
                return Refused(refusal)
            self.used = time.monotonic()
            try:
                bound = self._runners.of(module)
                due = self.first_use.due(sizes)
                spot = not due and self._checks.due(context.copied)
                captured = self._alone and self.captures.are_due(inputs)
                rare = due or spot or self.fresh or captured or compared is not None
                behind = unchanged is not None and self._checks_behind and not rare
                if unchanged is not None and not behind and not unchanged():
                    return CHANGED
                current = bound.binding
                # Held first: nobody frees what was looked at, or what is left for a later look. Kept by this call: the
                # host lets go of it for room in another thread, or in a function that the graph calls.
                kept = None if current is None else held.hold(id(bound), current)
                fits = current is not None and current.can_be_read(module, kept, checked=not behind)
                if unchanged is not None and not rare:
                    if current is None or not fits:
                        return CHANGED
                    launch, step = functools.partial(self._run, bound.runner, inputs), context.step if behind else None
                    output = launch() if step is None else step.call(self, bound, held, inputs, launch)
                    if behind and not (current.holds(module) and unchanged()):  # looked at while the device computes
                        counters.dropped_calls += 1
                        return CHANGED
                    counters.compiled_calls += 1
                    return Result(output)
                marker = self.captures.marked() if captured else contextlib.nullcontext()
                with self._store.markers.loading(self.entry.folder) if self.fresh else marker:
                    if not fits:
                        made = self._bind(bound, module)
                        if isinstance(made, Refused):
                            return made
                        counters.binds += 1
                        held.put(id(bound), *made)
                        kept = made[1]
                        del made
                    if due or spot:
                        counters.spot_checks += spot
                        comparison = Comparison(inputs, sizes, functools.partial(self._run, bound.runner), eager)
                        compare = self._checks.later if spot else self._checks.first
                        comparing = functools.partial(self._comparing, compared)
                        output, failed = compare(comparison, bound.runner, comparing, apart=compared is not None)
                        result = Result(output) if failed is None else self._retire(failed)
                    else:
                        result = Result(self._run(bound.runner, inputs))
                    del kept
            except torch.OutOfMemoryError as error:
                log.info("a compiled call ran out of memory: %s", str(error).partition("\n")[0])
                return Refused(reasons.MemoryRanOut())
            if self.fresh:
                self.fresh = False
                with self._comparing(compared):
                    result = self._with_all_outputs(inputs, eager, result)
                if self.retired is None:
                    self._store.markers.clear_loading(self.entry.folder)
            if due:
                slower = self.first_use.slower()
                if slower is not None and self.held_bytes:
                    self.retired = slower  # not used in this process, so its memory goes back as far as it does
                    self._runners.close()
            if result.refusal is None:
                counters.compiled_calls += 1
            return result

    def _run(self, runner: Runner, inputs: tuple[torch.Tensor, ...]) -> Output:
        """The runner's call, once more with more room where memory ran out."""
        try:
            return runner(*inputs)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if not out_of_memory.suspicious(error, self.device):
                raise
        make_room = (lambda: self.captures.release("needed"), self._make_room)
        return out_of_memory.retried(lambda: runner(*inputs), make_room, self.device)

    def launched(self, bound: BoundRunner, inputs: tuple[torch.Tensor, ...]) -> Output:
        """Launch a call of a runner, whatever it is bound to."""
        with self._lock:
            return bound.runner(*inputs)

    def allow_captures(self) -> None:
        """Have calls captured from now on: a child process has shown that they can be."""
        with self._lock:
            self.captures.allow()

    def warm(self, inputs: tuple[torch.Tensor, ...], modules: int = 1) -> None:
        """Run on weights of zeros, so that kernels and libraries are on the device before the first calls need them.

        Args:
            modules: that will be served, where each has a runner of its own.
        """
        weights = None
        for number in range(modules):
            with self._lock:  # a call that comes meanwhile waits for one runner only, and ends this
                if not self.fresh or self._runners.first.binding is not None or self.retired is not None:
                    return
                runner = self._runners.ahead() if number else self._runners.first.runner
                if runner is None:
                    return
                with self._store.markers.loading(self.entry.folder):
                    weights = weights or zeros(self._constants, self.device)
                    run_once(runner, weights, inputs, self.device)
                    self.captures.prepare(self.device)
                if number:
                    self._runners.keep(runner)

    @contextlib.contextmanager
    def _comparing(self, compared: Callable[[], contextlib.AbstractContextManager[object]] | None) -> Iterator[None]:
        """In what a graph is compared with eager."""
        with self.captures.paused(), contextlib.nullcontext() if compared is None else compared():
            yield

    def _bind(
        self, bound: BoundRunner, module: torch.nn.Module
    ) -> tuple[binding.Binding, list[torch.UntypedStorage]] | Refused:
        bound.binding = None
        try:
            made = binding.bind(bound.runner, module, self._constants, self.device, self._prefix)
        except BindError as error:
            return Refused(reasons.BindFailed(str(error)))
        if not isinstance(made, Refused):
            bound.binding = made[0]
        return made

    def _with_all_outputs(
        self, inputs: tuple[torch.Tensor, ...], eager: Callable[..., Output], result: Result
    ) -> Result:
        """The result of a graph that returns as many tensors as its manifest says, else eager's."""
        count, wanted = len(tensors_of(result.output)), self.entry.manifest.outputs
        if result.refusal is not None or count == wanted:
            return result
        other = reasons.OtherResult(f"{count} tensors", f"{wanted} tensors")
        reference = Comparison(inputs, {}, eager, eager).reference()
        return self._retire(CheckFailed(reasons.FirstUseFailed(other), reference))

    def _retire(self, failed: CheckFailed) -> Result:
        self.retired = failed.reason
        self._runners.close()
        self._lease.release()
        log.warning("%s: %s", self.entry.folder.name, Refused(failed.reason).text)
        self._store.quarantine(Broken.of(self.entry, failed.reason))
        self._remember_wrong(failed.reason)
        return Result(failed.reference, failed.reason)
