"""The call protocol: how any client runs a call of a component through a graph, or eager with the reason.

A client prepares a `Call`: the request for a graph, the inputs, the same function without a graph; or it refuses with a
reason. Everything else is done here: admission, finding or compiling the graph, splitting batches, binding, counting,
reporting, and falling back to eager.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.log import logger
from ...common.outputs import Output, is_finite, mapped
from ...common.reasons import Reason
from ...common.refused import Refused
from ..graphs.call_context import CallContext
from ..graphs.loaded_graph import CHANGED, Changed, LoadedGraph
from ..guards import ambient_modes
from ..obtain.registry import registry
from ..request import Request, WhenMissing
from .client import Client
from .run import Run
from .seen_calls import MOST_SEEN, Seen, plain
from .serve import Failed, serve

log = logger("runtime")

MOST_EXACT = 8  # exact compiles per architecture and process, so that changing sizes cannot compile without end


@dataclass(frozen=True)
class Substituted:
    """An output that is right but not the graph's, and why."""

    output: Output
    reason: Reason


Accepted = Output | Substituted | Refused


@dataclass(frozen=True)
class Call:
    """One call of a component, as a client prepares it.

    Attributes:
        request: for the graph.
        inputs: of the request's shape range, in order; the batch is the first dimension, or that is 1.
        eager: the same function of such inputs without a graph, at any size: to compare with at times.
        when_missing: what to do where there is no graph.
        chunk: elements of the batch that a graph takes at once; 0: all. Then the batch comes first in each output, too.
        accept: judges the output of each chunk before it leaves; None: it leaves as it is.
    """

    request: Request
    inputs: Sequence[torch.Tensor]
    eager: Callable[..., Output]
    when_missing: WhenMissing
    chunk: int = 0
    accept: Callable[[Sequence[torch.Tensor], Output], Accepted] | None = None

    def chunks(self) -> list[list[torch.Tensor]]:
        """The inputs in pieces that a graph takes; one that is the same for the whole batch is in all of them."""
        batch = self.inputs[0].shape[0]
        if not self.chunk or batch <= self.chunk:
            return [[*self.inputs]]
        batched = [spec.dims[0] == self.request.shapes.inputs[0].dims[0] for spec in self.request.shapes.inputs]
        pairs = [*zip(self.inputs, batched, strict=True)]
        starts = range(0, batch, self.chunk)
        return [[t[start : start + self.chunk] if sliced else t for t, sliced in pairs] for start in starts]


class Dispatcher(Client):
    """Runs the calls of one component, for one client."""

    def __init__(self) -> None:
        self._served: weakref.WeakSet[LoadedGraph] = weakref.WeakSet()

    def dispatch(
        self, run: Run, module: torch.nn.Module, prepare: Callable[[], Call | Refused], original: Callable[[], Any]
    ) -> Any:
        """Run one call: by a graph where one serves it, else by `original`. Never raises for the graph's sake.

        Args:
            module: that is called, which the run checks.
            prepare: what the client wants of a module that was checked, or why it refuses.
            original: the call as the host makes it.

        Returns:
            The output, one tensor or a tuple of them, shaped as eager's; or what `original` returns.
        """
        run.report.call_starts()
        served = serve(functools.partial(self._serve, run, module, prepare), run.served and run.may_check_later)
        if isinstance(served, Failed):
            run.refusal = served.reason
        run.served = not isinstance(served, Substituted | Refused)
        if not isinstance(served, Substituted | Refused):
            run.report.compiled_calls += 1
            return served
        count_eager(run, served.reason)
        return served.output if isinstance(served, Substituted) else original()

    def _serve(
        self, run: Run, module: torch.nn.Module, prepare: Callable[[], Call | Refused], checked: bool
    ) -> Accepted | Changed:
        """One call by a graph. `checked`: the module is inspected first, else the graph's call looks at it."""
        if not checked:
            return self._attempt(run, prepare, functools.partial(run.unchanged, module))
        refusal = run.inspect(module)
        return self._attempt(run, prepare, None) if refusal is None else Refused(refusal)

    def _attempt(
        self, run: Run, prepare: Callable[[], Call | Refused], unchanged: Callable[[], bool] | None
    ) -> Accepted | Changed:
        """One call by a graph, chunk by chunk. `unchanged`: see `CallContext`."""
        started = time.perf_counter()
        call = prepare()
        if isinstance(call, Refused):
            return call
        outputs: list[Output] = []
        instead: Reason | None = None
        for chunk in call.chunks():
            ready = self._ready(run, call, chunk, unchanged is None)
            if isinstance(ready, Refused | Changed):
                return ready
            graph, seen = ready
            still = None if unchanged is None else functools.partial(_still, graph, unchanged)
            first, inputs = graph.fresh, tuple(chunk)
            if not seen.memory_of(inputs, ()).as_expected:
                inputs = tuple(map(plain, inputs))
            assert seen.sizes is not None  # it was admitted
            with run.weights(call.request.module) as module:
                if isinstance(module, Refused):
                    return module
                counters = registry().counters
                context = CallContext(run.held, still)
                result = graph.call(module, inputs, seen.sizes, call.eager, counters, context)
            if isinstance(result, Changed):
                return result
            if isinstance(result, Refused):
                if isinstance(result.reason, reasons.MemoryRanOut):  # in this run: the next one may have more memory
                    run.refused[call.request.key.digest] = result.reason
                return result
            self._served.add(graph)
            if result.refusal is not None:
                return Refused(result.refusal)
            _report(run, call.request, graph, time.perf_counter() - started if first else None)
            accepted = result.output if call.accept is None else call.accept(chunk, result.output)
            if isinstance(accepted, Refused):
                return accepted
            if isinstance(accepted, Substituted):
                instead = accepted.reason
            outputs.append(accepted.output if isinstance(accepted, Substituted) else accepted)
        output = outputs[0] if len(outputs) == 1 else mapped(lambda *chunks: torch.cat(chunks), *outputs)
        return output if instead is None else Substituted(output, instead)

    def _ready(
        self, run: Run, call: Call, inputs: list[torch.Tensor], checked: bool
    ) -> tuple[LoadedGraph, Seen] | Refused | Changed:
        """The graph that may serve these inputs now, and what they are like. `checked`: whether the module just was."""
        request = call.request
        around = ambient_modes.refusal(request.module, inputs)  # first: autocast changes inputs' dtypes, too
        if around is not None:
            return Refused(around)
        seen = _seen(run, request, inputs)
        if isinstance(seen, Refused):
            return seen
        if request.key.digest in run.refused:
            return Refused(run.refused[request.key.digest])
        graph = registry().loaded(request.key, request.device)
        if not checked and (graph is None or id(graph) not in run.bound):
            return CHANGED
        if graph is None or graph.retired is not None:
            obtained = self._obtain(run, self.with_memory(run, request, inputs[0]), call.when_missing)
            if isinstance(obtained, Refused):
                return obtained
            graph = obtained
        replaced = graph.replaced() if checked else None
        if replaced is not None:
            return Refused(replaced)
        if id(graph) not in run.bound:
            graph.start_run(request.module, run.weights_version)
        run.bound.add(id(graph))
        return graph, seen

    def _obtain(self, run: Run, request: Request, when_missing: WhenMissing) -> LoadedGraph | Refused:
        digest = request.key.digest
        compiled = registry().exact_compiles.setdefault(request.key.architecture, set())
        exact = request.shapes.exact
        full = exact and digest not in compiled and len(compiled) >= MOST_EXACT
        graph = registry().obtain(request, "eager" if full else when_missing, self.follow(request.label))
        if exact and not full and not (isinstance(graph, LoadedGraph) and graph.origin == "restored"):
            compiled.add(digest)
        if isinstance(graph, Refused):
            if full:
                graph = Refused(reasons.TooManyExactSizes(MOST_EXACT, request.label))
            if not graph.passing:
                run.refused[digest] = graph.reason
        return graph

    def release_captures(self) -> None:
        """Release the CUDA graphs of what served here: its model leaves the device. Never raises."""
        for graph in list(self._served):
            try:
                graph.release_captures("freed")
            except Exception:  # the host is about to unload the model, which must go on
                log.exception("CUDA graphs could not be released")


def _still(graph: LoadedGraph, unchanged: Callable[[], bool]) -> bool:
    return graph.replaced() is None and unchanged()


def fault_of(request: Request, reference: Output) -> Reason | None:
    """Why a graph's result that is not finite must not leave, and is retired for it; None: eager's is not, either.

    Args:
        reference: eager's result.
    """
    if not is_finite(reference):
        return None
    registry().retire(request, reasons.GraphNotFinite())
    return reasons.GraphNotFinite()


def count_eager(run: Run, reason: Reason, calls: int = 1) -> None:
    """Count calls of a run that ran without a graph."""
    run.report.eager[reason] += calls
    registry().counters.count_eager(reason, calls)


def _report(run: Run, request: Request, graph: LoadedGraph, first_s: float | None) -> None:
    """Note what served a call. `first_s`: seconds so far, at a graph's first call in this process."""
    report = run.report
    report.label, report.speedup = request.label, graph.first_use.result.speedup
    if first_s is not None and graph.origin == "compiled":
        report.compile_s, report.instead_of = graph.entry.manifest.compile_seconds, graph.instead_of
    elif first_s is not None:
        report.restore_s = first_s - run.filling_s


def _seen(run: Run, request: Request, inputs: Sequence[torch.Tensor]) -> Seen | Refused:
    """What inputs of a request's graph are like, as it is known from earlier ones; or why the graph does not take them.

    Most of a run's calls look alike.
    """
    known = run.seen.setdefault(request.key.digest, [])
    for seen in known:
        if seen.looks.same_as(*inputs):
            return seen
    refusal = request.shapes.refusal(inputs, request.device)
    if refusal is not None:
        return Refused(reasons.NotAdmitted(refusal, request.label))
    seen = Seen.of(inputs, [], request.shapes.sizes(inputs))
    known[:] = [seen, *known[: MOST_SEEN - 1]]
    return seen
