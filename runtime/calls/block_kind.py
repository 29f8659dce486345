"""A kind of block in this process: whether a call is one of it, and its graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ...common import reasons
from ...common.errors import in_brief
from ...common.outputs import Output, output_of, tensors_of
from ...common.reasons import Reason
from ...common.refused import Refused
from ...compiler.blocks import attention
from ...signature import call_tree, matching
from ...signature.call_rules import Attention, CallRules
from ...signature.call_tree import Form, Leaf, NumberForm, leaf_forms
from ...signature.functions import Function, folding, reaches
from ...signature.modulation import given_in
from ...signature.parameters import called
from ...signature.size_one_dims import SizeOneDims, differing_size_one_dims
from ...signature.size_rules import Sizes, sizes_of
from ..counters import Counters
from ..graphs.call_context import CallContext
from ..graphs.first_use import ChangingEager, QuantisingEager
from ..graphs.loaded_graph import Changed, LoadedGraph, Result
from .seen_calls import MOST_SEEN, Seen, plain


class Matched(NamedTuple):
    """A call that is of a kind, taken apart.

    Attributes:
        named: the block's arguments by name.
        tensors: among the leaves.
        seen: what it looks like.
    """

    named: Mapping[str, Any]
    leaves: Sequence[Leaf]
    tensors: Sequence[torch.Tensor]
    seen: Seen


class BlockCall(NamedTuple):
    """One call of a block.

    Attributes:
        block: what a graph is compared with: the block, or a copy of it that has all weights.
        module: the block with all its weights where a graph can read them.
        options: the model's.
        context: see `CallContext`.
        exact: gives a copy of the block in float32, where its weights are quantised.
    """

    block: torch.nn.Module
    module: torch.nn.Module
    options: Any
    context: CallContext
    exact: Callable[[torch.nn.Module], torch.nn.Module] | None = None


class _WritesError(Exception):
    """A block wrote into a container that it was given."""


@dataclass(frozen=True)
class Raised:
    """What a function of the user's choice raised in the midst of a call, which eager would have raised, too."""

    error: BaseException


@dataclass(frozen=True)
class KindOfCall:
    """How a block is called: together with its structure, what makes a kind.

    Attributes:
        name: of the block's class, for reasons.
        form: of the arguments by name.
        packages: whose objects are taken apart by their fields.
        attention: how such calls attend.
        ones: by which they differ from calls of an earlier kind of the same form; None: there is none.
        learned: how many graphs of the kind with too narrow rules of sizes were made before.
    """

    name: str
    form: Form
    packages: tuple[str, ...]
    attention: Attention = "captured"
    ones: SizeOneDims | None = None
    learned: int = 0


class KindGraph:
    """The graph of a kind of block, or why there is none.

    Attributes:
        of: the calls that are of the kind, with its name, form, attention, ones and learned as attributes here, too.
        refusal: why no call of the kind is served, or None.
        without: paths of the block's modules whose results its calls have, and whose weights the graph does not.
    """

    def __init__(self, of: KindOfCall, obtained: LoadedGraph | Refused) -> None:
        self.of = of
        self.name, self.attention, self.ones, self.learned = of.name, of.attention, of.ones, of.learned
        self.form = form = of.form
        self._leaves_of = matching.structured(form)
        self._is_of_form = matching.of_form(form)
        self.graph = obtained if isinstance(obtained, LoadedGraph) else None
        self.refusal: Reason | None = obtained.reason if isinstance(obtained, Refused) else None
        self._numbers = [n for n, one in enumerate(leaf_forms(form)) if isinstance(one, NumberForm)]
        self._tensors = [n for n, one in enumerate(leaf_forms(form)) if not isinstance(one, NumberForm)]
        self._functions = call_tree.functions_in(form)
        self.without = tuple(one.module for one in given_in(form))
        self._packages = of.packages
        self._seen: list[Seen] = []
        if self.graph is not None:
            try:
                self.signature = CallRules.from_json(self.graph.entry.manifest.call_rules, of.packages)
                if self.signature.arguments != form:
                    self.refusal = reasons.OtherKey("form of the arguments")
                elif of.attention == "captured" != self.signature.attention:
                    self.refusal = reasons.OtherKey("attention")
                self._calls_out = self.signature.calls_out
                self._changed = [self._tensors.index(number) for number in self.signature.mutated]
                self._finish = self.signature.finisher()
            except ValueError as error:  # it returns objects of a package that this client does not take apart
                self.refusal = reasons.CallFailed("ValueError", in_brief(error, 120))

    @property
    def calls_functions(self) -> bool:
        """Whether calls of the kind have functions among their arguments, or of the user's choice."""
        return bool(self._functions) or self.attention != "captured"

    def match(self, named: Mapping[str, Any]) -> Matched | None:
        """Take a call apart; None: it is of another kind."""
        leaves = self._leaves_of(named)
        if leaves is None:
            return None
        if not self._numbers:
            tensors, numbers = leaves, []
        else:
            tensors = [leaves[number] for number in self._tensors]
            numbers = [leaves[number] for number in self._numbers]
        for seen in self._seen:
            if seen.looks.same_as(*tensors) and seen.numbers == numbers:
                return Matched(named, leaves, tensors, seen)  # type: ignore[arg-type]
        if not self._is_of_form(leaves):
            return None
        if self.ones is not None and not self.ones.fit(sizes_of(leaves)):
            return None
        return Matched(named, leaves, tensors, self._look(leaves, tensors, numbers))  # type: ignore[arg-type]

    def _look(self, leaves: Sequence[Leaf], tensors: Sequence[torch.Tensor], numbers: list[int]) -> Seen:
        """Look at a call of the kind, and remember what was seen."""
        graph, sizes, elsewhere, ones, outside_rules = self.graph, None, None, None, False
        if graph is not None and self.refusal is None:
            rules, by_leaf = self.signature.sizes, sizes_of(leaves)
            if rules.fits(by_leaf):
                sizes = {f"size {n}": by_leaf[leaf][dim] for n, (leaf, dim) in enumerate(rules.symbols)}
            else:
                ones = differing_size_one_dims(rules, by_leaf, self._tensors) if self.ones is None else None
                outside_rules = not rules.holds(by_leaf)
            elsewhere = next((one.device for one in tensors if one.device != graph.device), None)
        seen = Seen.of(tensors, numbers, sizes, elsewhere, ones, outside_rules)
        self._seen = [seen, *self._seen[: MOST_SEEN - 1]]
        return seen

    def samples(self) -> list[Sizes]:
        """Sizes of calls that the graph serves: see `SizeRules.samples`."""
        return self.signature.sizes.samples(len(leaf_forms(self.form)))

    def serves_all_of(self, other: KindGraph) -> bool:
        """Tell whether this kind's graph serves the calls that another one of the same form serves."""
        if self.graph is None or self.refusal is not None:
            return False
        return all(map(self.signature.sizes.fits, other.samples()))

    def example(self) -> Sizes:
        """Sizes of a call that was made when the graph was compiled."""
        shapes = self.signature.sizes.recorded_sizes()
        return tuple(shapes.get(leaf, ()) for leaf in range(len(leaf_forms(self.form))))

    def serve(
        self, call: BlockCall, matched: Matched, counters: Counters, compared: Callable[[Any], Any]
    ) -> tuple[Any] | Raised | Refused | Changed:
        """What a block returns for a call, computed by the graph; or why not, and then nothing was changed.

        Args:
            compared: see `BlockClient.compared`.
        """
        graph = self.graph
        if self.refusal is not None or graph is None:
            return Refused(self.refusal or reasons.NoGraph())
        if attention.is_attending():  # its graph may be this one, which runs once at a time
            return Refused(reasons.AttentionCallsModel(self.name))
        if call.options is not None and type(call.options) is not dict:
            return Refused(reasons.BlockArgument(f"options of type {type(call.options).__name__}"))
        signature, seen = self.signature, matched.seen
        path = signature.options.refused(call.options)
        if path is not None:
            return Refused(reasons.BlockOption(".".join(path)))
        if seen.sizes is None:
            return Refused(reasons.BlockSizes(self.name))
        if seen.elsewhere is not None:
            return Refused(reasons.BlockElsewhere(self.name, str(seen.elsewhere)))
        memory = seen.memory_of(matched.tensors, self._changed)
        if memory.shared:
            return Refused(reasons.BlockShared(self.name))
        inputs: list[Any] = [*matched.leaves]
        if not memory.as_expected:
            for number in self._tensors:
                inputs[number] = plain(inputs[number])
        for number in self._numbers:
            inputs[number] = torch.empty(inputs[number], 0, device=graph.device)
        try:
            if self._calls_out:
                result = self._calling_out(call, matched, tuple(inputs), counters, compared)
            else:
                context = call.context if memory.as_expected else call.context._replace(copied=True)
                eager = self._judged(call, call.options)
                result = graph.call(call.module, tuple(inputs), seen.sizes, eager, counters, context)
        except _WritesError:
            self.refusal = reasons.FirstUseFailed(reasons.BlockWrites(self.name))
            graph.quarantine(self.refusal)
            return Refused(self.refusal)
        if not isinstance(result, Result):
            return result
        # A result that is eager's after all is right, too: of the same tensors.
        if result.refusal is not None:
            self.refusal = result.refusal
        return (self._finish(matched.leaves, tensors_of(result.output)),)

    def _calling_out(
        self,
        call: BlockCall,
        matched: Matched,
        inputs: tuple[torch.Tensor, ...],
        counters: Counters,
        compared: Callable[[Any], Any],
    ) -> Result | Raised | Refused | Changed:
        """The call of a graph that calls functions: those of attention, and such as the block is called with.

        Args:
            inputs: the call's tensors, or copies of them.
        """
        assert self.graph is not None and matched.seen.sizes is not None
        if not attention.can_be_called():
            return Refused(reasons.ChosenAttention("another attention"))
        functions = call_tree.functions_of(self.form, matched.named)
        if any(reaches(one, matched.tensors, call.options) for one in functions):
            return Refused(reasons.BlockShared(self.name))
        options = compared(call.options)

        def comparing() -> contextlib.AbstractContextManager[None]:
            return attention.attending(attention.Call(options, self._packages, call.block, None))

        attention_call = attention.Call(call.options, self._packages, call.block, functions)
        eager = self._judged(call, options)
        try:
            with attention.attending(attention_call):
                context = call.context._replace(compared=comparing, step=None)
                result = self.graph.call(call.module, inputs, matched.seen.sizes, eager, counters, context)
        except Exception:
            if attention_call.error is None:
                raise
            return self._failed(attention_call.error)
        if isinstance(result, Result) and result.refusal is not None:  # its output is that of a comparison
            self.refusal = result.refusal
            return Refused(result.refusal)
        return result

    def _failed(self, error: BaseException) -> Raised | Refused:
        """What follows from what an attention function raised, or returned."""
        if isinstance(error, torch.OutOfMemoryError):  # eager may need less
            return Refused(reasons.MemoryRanOut())
        if isinstance(error, attention.OtherResultError):
            self.refusal = reasons.AttentionResult(str(error), self.name)
            return Refused(self.refusal)
        return Raised(error)

    def _eager(self, call: BlockCall, inputs: Sequence[torch.Tensor], options: Any) -> Output:
        """The block's own method as a function of a graph's inputs."""
        form, output = self._computed(call.block, inputs, options)
        if form != self.signature.results:
            raise ValueError("a block returned something else than its graph")
        return output

    def _judged(self, call: BlockCall, options: Any) -> Callable[..., Output]:
        """What a graph is compared with: where weights are quantised, with the exact result, too."""
        mutated, copied = self.signature.mutated, call.exact
        eager = ChangingEager(lambda *tensors: self._eager(call, tensors, options), mutated)
        if copied is None:
            return eager

        def exact(*tensors: torch.Tensor) -> Output:
            floats = [one.float() if one.is_floating_point() else one for one in tensors]
            for number in mutated:
                floats[number] = floats[number].clone() if floats[number] is tensors[number] else floats[number]
            with torch.no_grad():
                return self._computed(copied(call.module), floats, options)[1]

        return QuantisingEager(eager, exact, self.signature.part)

    def _computed(self, block: torch.nn.Module, inputs: Sequence[torch.Tensor], options: Any) -> tuple[Form, Output]:
        """What a block returns: its form, and what a graph of it would return."""
        signature = self.signature
        leaves: list[Any] = [*inputs]
        for number in self._numbers:
            leaves[number] = inputs[number].shape[0]
        functions: list[Function] = []
        if self._functions:
            values = [sizes_of(leaves)[leaf][dim] for leaf, dim in signature.sizes.symbols]
            functions = folding(self._functions, signature.functions.shapes(values), self._packages)
        named = call_tree.rebuild(self.form, leaves, options, functions)
        written = call_tree.watched(named, self._packages)
        result = called(block, named)
        if written():
            raise _WritesError
        form, result_leaves = call_tree.flatten(result, self._packages)
        fresh = [one for one, alias in zip(result_leaves, signature.aliases, strict=True) if alias is None]
        return form, output_of([*fresh, *(leaves[number] for number in signature.mutated)])  # type: ignore[list-item]
