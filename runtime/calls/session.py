"""A run of a model whose blocks are compiled, and each of its calls."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...common import reasons
from ...common.errors import in_brief
from ...common.log import logger
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.torch_private import hook_tables, is_compiled_by_torch
from ...compiler.blocks.outer_call import ModelCall
from ...compiler.blocks.repeated import repeated_blocks
from ...signature.call_rules import Attention
from ...signature.call_tree import OPTIONS
from ...signature.parameters import options_of, parameters_of
from ...signature.views import UnservedCallError, closed, opened, opened_result, view_of
from ..graphs.call_context import CallContext
from ..graphs.loaded_graph import CHANGED, Changed, LoadedGraph
from ..graphs.step_replay import StepReplay
from ..guards import ambient_modes, code_guard
from ..guards.guard_cache import GuardCache
from ..obtain.registry import registry
from .block_kind import BlockCall, KindGraph, Matched, Raised
from .block_kinds import Differing, Kinds, choose
from .call_weights import CallWeights
from .client import BlockClient
from .kept_modulation import KeptModulation
from .routing import MethodSlot, own_slot, routed
from .run import Run
from .run_block import RunBlock
from .serve import Failed, serve
from .weight_source import Brought

log = logger("runtime")


class BlockRun:
    """A run of one model: what its blocks are, and by what they are served. A call is served within `call`.

    It does not keep the model alive.

    Args:
        run: the client's, which keeps what is checked and what is reported.
        guards: of earlier runs.
        lock: held while blocks are inspected, where several threads may call the model.
    """

    def __init__(
        self,
        client: BlockClient,
        run: Run,
        model: torch.nn.Module,
        guards: GuardCache,
        lock: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        self._client = client
        self._run_of = weakref.ref(run)  # which has this: nothing waits for a collector that holds weights
        self._model = weakref.ref(model)
        self._weights = CallWeights()
        self._lock = threading.RLock() if lock is None else lock
        self._kinds = Kinds(client, run)
        self._modulation = KeptModulation(client)
        self._step = StepReplay()
        self._outer: ModelCall | None = None
        self._counters = registry().counters
        self._moment = object()  # of a call of the model
        self._called = False
        self._served = 0
        self._eager: Counter[Reason] = Counter()
        rules = client.rules()
        self._exact = rules.composites.exact
        self._blocks: dict[int, RunBlock] = {}
        for name, block in repeated_blocks(model).items():
            made = RunBlock(name, block, guards.of(block, rules), block)
            self._blocks[id(block)] = made
            self._look_at(made)
        run.report.blocks.of = len(self._blocks)

    @property
    def _run(self) -> Run:
        run = self._run_of()
        assert run is not None  # whoever calls has it
        return run

    @property
    def may_serve(self) -> bool:
        """Whether graphs may serve the next call: they served the last one, or nobody knows yet."""
        usable = any(one.graph is not None and one.refusal is None for one in self._kinds)
        return usable or self._run.served or not self._called

    # A call of the model ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def call(self, outer: ModelCall | None = None) -> Iterator[None]:
        """While this lasts, a call of the model is served. Never raises of itself, but for the user's interrupt.

        Args:
            outer: what the model is called with; None: to be seen when it is called.
        """
        run, report = self._run, self._run.report
        report.call_starts()
        self._called = True
        self._counters, self._moment = registry().counters, object()
        refusal = self._refusal()
        if refusal is not None:
            report.eager[refusal] += 1
            registry().counters.count_eager(refusal)
            run.served = False
            yield
            return
        self._served, self._eager, self._outer = 0, Counter(), outer
        lasting = contextlib.ExitStack()
        try:
            with self._reported():
                self._prepare(lasting)
            try:
                yield
            finally:
                with self._reported():
                    self._step.end()  # while the weights are in place
                with self._reported():
                    lasting.close()
            with self._reported():
                model = self._model()
                if model is not None:
                    self._kinds.compile_pending(model, self._outer)
        finally:
            self._outer = None  # the tensors of a call are not kept until the next one
            self._weights.end()
            self._modulation.forget()
        run.served = bool(self._served)
        if self._served:
            report.compiled_calls += 1
        elif self._eager:
            report.eager[self._eager.most_common(1)[0][0]] += 1
        else:  # a cache of steps may have left all of them out
            report.without_blocks += 1
        report.blocks.eager += self._eager
        report.blocks.modulation = self._modulation.counts

    def show(self, outer: ModelCall) -> None:
        """Take down what the model is called with, while a call of it is served."""
        self._outer = self._outer or outer

    def _prepare(self, lasting: contextlib.ExitStack) -> None:
        """Have the weights where graphs read them, and blocks' calls come here, as long as `lasting` does."""
        model = self._model()
        assert model is not None  # it is called
        cls: Any = type(model)  # whose own methods call its blocks, or what somebody has put in their place
        self._step.begin(allowed=all(code_guard.is_own_method(cls, name) for name in self._client.entries))
        self._weights.begin(self._run, model, lasting)
        self._modulation.begin(self._weights.source)
        slots: list[tuple[torch.nn.Module, Sequence[MethodSlot]]] = []
        for one in self._blocks.values():  # some calls do not come here
            methods = self._client.slots(one.block)
            if is_compiled_by_torch(one.block):  # it would trace through a route
                self._eager[reasons.TorchCompiled()] += 1
            elif any(hook_tables(one.block)):  # torch looks a forward up before it runs hooks, which may replace it
                hooked = reasons.ForwardHook(f"{one.name} ({type(one.block).__name__})")
                self._eager[hooked] += 1
                self._counters.count_eager(hooked)
            else:
                slots.append((one.block, methods))
                for slot in (one for one in methods if one.is_taken):
                    source = code_guard.custom_node(slot.table[slot.name])
                    self._eager[reasons.BlockReplaced(one.name, source)] += 1
        entries = [(model, [own_slot(model, name)]) for name in self._client.entries]  # within which blocks are routed
        lasting.enter_context(routed([*slots, *entries], self))

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Whatever goes wrong goes into the log and the report, never into the queue: the rest of the run is eager."""
        try:
            yield
        except Exception as error:
            reason = self._give_up(error)
            self._run.report.eager[reason] += 1
            registry().counters.count_eager(reason)

    def _refusal(self) -> Reason | None:
        """Why no block is served in this call of the model, or None."""
        try:
            return self._run.refusal or self._client.refusal(self._run)
        except Exception as error:  # never into the queue
            return self._give_up(error)

    def _give_up(self, error: Exception) -> Reason:
        """Have the rest of the run eager after an error."""
        log.error("the blocks of a model cannot be served", exc_info=error)
        self._run.refusal = reason = reasons.NotInspected("model", type(error).__name__, in_brief(error))
        return reason

    def _look_at(self, one: RunBlock) -> bool:
        """Take down what a block is now; whether it is what it was."""
        with self._lock:
            other = one.look(self._client, self._run)
            if other:
                one.kinds = self._kinds.of(one.architecture)
            return not other

    # A call of a block --------------------------------------------------------------------------------------

    def call_of(self, block: torch.nn.Module, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a block or of the model: by a graph, or by the class's own method."""
        one = self._blocks.get(id(block))
        if one is None:
            if self._outer is None and block is self._model():
                self.show(ModelCall(args, kwargs, method, self._client.entries[method]))
                self._look_ahead(block, args, kwargs)
            return getattr(type(block), method)(block, *args, **kwargs)
        attempt = functools.partial(self._serve, one, method, args, kwargs)
        served: tuple[Any] | Raised | Refused = serve(attempt, one.served and not self._weights.by_block)
        if isinstance(served, Failed):
            one.failure = served.reason
        one.served = isinstance(served, tuple)
        if isinstance(served, tuple):
            self._served += 1
            return served[0]
        if isinstance(served, Raised):
            raise served.error
        self._eager[served.reason] += 1
        self._counters.count_eager(served.reason)
        with self._modulation.watched(one, method, args, kwargs, served.reason) as watched:
            result = getattr(type(block), method)(block, *args, **kwargs)
        cls: Any = type(block)
        self._kinds.settle(block, lambda: opened_result(block, parameters_of(cls, method).bind(args, kwargs), result))
        if watched.named:
            self._kinds.instead(one, watched.named)
        return result

    def _look_ahead(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a call of the model: see what later ones will need of weights that are streamed. Never raises."""
        try:
            timesteps = self._run.timesteps(kwargs.get(OPTIONS)) if self._weights.source is not None else ()
            self._modulation.look_ahead(model, args, kwargs, timesteps, lambda block: self._blocks.get(id(block)))
        except Exception:  # the call itself shows whether something is wrong
            log.debug("what blocks will be given cannot be told", exc_info=True)

    def _serve(
        self, one: RunBlock, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], checked: bool
    ) -> tuple[Any] | Raised | Refused | Changed:
        """A call of a block by a graph. `checked`: the block is checked first, else by the graph's call."""
        if checked:
            self._look_at(one)
        refusal = one.failure or one.refusal
        if refusal is not None:
            return Refused(refusal)
        try:
            cls: Any = type(one.block)
            bound = parameters_of(cls, method).bind(args, kwargs)
            viewed = view_of(one.block) is not None
            named = opened(one.block, bound) if viewed else bound
        except UnservedCallError as error:
            return Refused(error.reason)
        except TypeError:  # the class's own method says what is wrong
            return Refused(reasons.UnusualInputs())
        around = ambient_modes.refusal(one.block, named.values())
        if around is not None:  # first: autocast changes arguments' dtypes, too
            return Refused(around)
        options = options_of(named)
        attention = self._client.attention(options)
        given: Mapping[str, Any] | Refused = named
        if self._weights.by_block:
            given = self._modulation.given(one, method, named, attention, options)
        served = given if isinstance(given, Refused) else self._serve_kind(one, given, attention, options, checked)
        if isinstance(served, Refused) and given is not named and self._modulation.gave_up(one):
            served = self._serve_kind(one, named, attention, options, checked)
        return (closed(one.block, bound, served[0]),) if viewed and isinstance(served, tuple) else served

    def _serve_kind(
        self, one: RunBlock, named: Mapping[str, Any], attention: Attention, options: Any, checked: bool
    ) -> tuple[Any] | Raised | Refused | Changed:
        """A call of a block by the graph of its kind."""
        chosen: tuple[KindGraph, Matched] | Refused | Differing = choose(one.kinds, named, attention)
        if isinstance(chosen, Differing):
            if not checked:
                return CHANGED
            chosen = self._kinds.find(one, named, attention, chosen)
        if isinstance(chosen, Refused):
            return chosen
        kind, matched = chosen
        graph = kind.graph
        if graph is not None and (not checked and id(graph) not in one.started):
            return CHANGED
        replaced = graph.replaced() if checked and graph is not None else None
        if replaced is not None:
            return Refused(replaced)
        if graph is None or kind.refusal is not None:
            self._kinds.note(kind, matched.named, matched.leaves)
            return Refused(kind.refusal or reasons.NoGraph())
        now = self._weights.refusal or self._client.call_refusal()
        if now is not None:
            return Refused(now)
        placed = self._weights.placed(one.name, one.skeleton, kind.without)
        if placed is not None:
            return self._run_graph(kind, matched, one, options, placed, checked)
        slower = graph.first_use.slower()
        if slower is not None:  # no weights are brought for it
            return Refused(slower)
        with self._weights.brought(one.name, kind.without) as brought:
            if isinstance(brought, Refused):
                return brought
            return self._run_graph(kind, matched, one, options, brought, checked)

    def _run_graph(
        self, kind: KindGraph, matched: Matched, one: RunBlock, options: Any, brought: Brought, checked: bool
    ) -> tuple[Any] | Raised | Refused | Changed:
        """Run the graph of a kind for a block whose weights are on the device."""
        run, graph = self._run, kind.graph
        assert graph is not None
        if id(graph) not in one.started:
            # The run's version is of no block: a layer that was exchanged is another version of its block alone.
            graph.start_run(brought.module, None if run.weights_version is None else one.version)
        one.started.add(id(graph))
        self._client.before_call(run, one.block)
        exact = self._exact if one.guard.composite else None
        # Weights that were brought for this call are held while it lasts; the live block would have its own brought.
        apart = brought.eager or brought.module
        held, block = (None, apart) if self._weights.by_block else (run.held, one.block)
        step = None if held is None or self._step.idle else self._step
        unchanged = None if checked else functools.partial(self._is_unchanged, one, graph)
        call = BlockCall(block, brought.module, options, CallContext(held, unchanged, step=step), exact)
        served = kind.serve(call, matched, self._counters, self._client.compared)
        if isinstance(served, tuple):
            run.report.blocks.served(graph, one.name, brought.streamed)
        elif not isinstance(served, Refused):
            return served  # raised, or changed
        elif isinstance(served.reason, reasons.MemoryRanOut) and not self._weights.ran_out(run, self._model()):
            kind.refusal = served.reason  # no more of this in this run: the next one may have more
        return served

    def _is_unchanged(self, one: RunBlock, graph: LoadedGraph) -> bool:
        """Whether a block is what it was when it was last checked, and its functions are those of the graph."""
        return self._look_at(one) and one.refusal is None and graph.replaced(self._moment) is None
