"""Capture a block as one graph for all sizes that its records show to vary, and read off what the graph depends on."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ...common.errors import CaptureError
from ...common.torch_private import assume, contiguous_where_asked, memory_of
from ...signature import call_tree
from ...signature.call_rules import Alias, Attention, CallRules
from ...signature.call_tree import Form, Leaf, NumberForm, UnknownArgumentError, flatten, leaf_forms
from ...signature.functions import CalledFunctions, Result
from ...signature.option_reads import OptionGuards, RecordedOptions, UnreadableOptionsError
from ...signature.parameters import called
from ...signature.size_rules import SizeRules, Sizes
from ..export import exported
from . import attention
from .captured_sizes import examples, has_ones, ranges, rule_of, same_symbols, slices
from .example_choice import with_examples
from .overlap import apart
from .own_state import own_writes

Watching = Callable[[], contextlib.AbstractContextManager[None]]
_PATCHES: Mapping[str, Any] = {"patches": {}}  # so that each patch that a block asks for is seen by its own name


@dataclass(frozen=True)
class BlockCalls:
    """The recorded calls of one kind of block.

    Attributes:
        form: of the arguments by name.
        records: sizes of the leaves, of each call.
        options: plain values among the model's options.
        packages: whose objects are taken apart by their fields.
        attention: whether the graph has the attention in it, or calls a function.
        results: sizes of the leaves of calls, and what functions among the arguments returned in them.
        served: sizes that the graph shall admit, too: see `SizeRules.infer`.
    """

    form: Form
    records: tuple[Sizes, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    attention: Attention = "captured"
    results: tuple[tuple[Sizes, tuple[Result, ...]], ...] = ()
    served: tuple[Sizes, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What a client changes while a block is captured.

    Attributes:
        overrides: options that the capture sets, such as the attention function; each call brings its own.
        stand_ins: options that the capture sets where the graph calls attention functions. It follows whatever a call
            has in their place.
        standing_in: has stand-ins (`attention.StandIn`) in place of the attention functions that blocks refer to.
        rewrites: of the model's package.
        fewest: operations of a block that is worth a graph: choosing and calling one costs as much as some.
        plain: gives a block whose weights are all plain tensors, by the names of the parts of composite ones.
    """

    overrides: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    standing_in: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    rewrites: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    fewest: int = 20
    plain: Callable[[torch.nn.Module], torch.nn.Module] = lambda block: block


@dataclass(frozen=True)
class CapturedBlock:
    """A captured block.

    Attributes:
        program: its graph.
        signature: the calls that it serves.
        module: what holds the weights by the graph's names.
        served: shapes of the graph's inputs in recorded calls that it serves.
    """

    program: torch.export.ExportedProgram
    signature: CallRules
    module: torch.nn.Module
    served: Sequence[Sequence[tuple[int, ...]]]

    @property
    def operations(self) -> int:
        """How many operations the graph has."""
        return sum(node.op == "call_function" for node in self.program.graph.nodes)


class Assumed(NamedTuple):
    """What a capture takes for given, and shows to be otherwise at times.

    Attributes:
        mutated: numbers of the leaves that the block changes in place.
        last_unused: whether no code uses what the last attention function returns, see `attention.last_is_unused`.
    """

    sizes: SizeRules
    functions: CalledFunctions
    mutated: tuple[int, ...] = ()
    last_unused: bool = False


class BlockToCapture(torch.nn.Module):
    """A block as a function of tensors: see `CallRules` for what it takes and gives.

    Attributes:
        seen: what calls show of the block, and no part of the module that is captured.
    """

    def __init__(
        self,
        block: torch.nn.Module,
        calls: BlockCalls,
        settings: Settings,
        assumed: Assumed,
        watching: Watching,
    ) -> None:
        super().__init__()
        self.module = block  # by the name that weights of whole modules have, too
        self.seen = _Seen(calls, settings, assumed, watching)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.seen.call(self.module, inputs)


class _Seen:
    """One capture of a block; export restores what a module's own attributes were, so they stand here."""

    def __init__(self, calls: BlockCalls, settings: Settings, assumed: Assumed, watching: Watching) -> None:
        self.calls = calls
        self.settings = settings
        self.sizes, self.functions, self.mutated, self.last_unused = assumed
        self.watching = watching
        self.changed: tuple[int, ...] = ()  # by the block, in place; those of `mutated` were copies
        self.results: Form | None = None
        self.aliases: tuple[Alias, ...] = ()
        self.options = OptionGuards()
        self.attention: Attention = "captured"

    def call(self, block: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        calls = self.calls
        values = [inputs[leaf].shape[dim] for leaf, dim in self.sizes.symbols]
        leaves = self._leaves(inputs, values)
        options = self._recorded_options()
        returned = [*zip(self.functions.calls, self.functions.shapes(values), strict=True)]

        def shape(number: int) -> Sequence[Any] | None:
            if not returned or returned[0][0][0] != number:
                raise UnknownArgumentError("it calls a function in some calls and not in others")
            return returned.pop(0)[1]

        stand_ins = attention.argument_stand_ins(call_tree.functions_in(calls.form), shape)
        named = call_tree.rebuild(calls.form, leaves, options, stand_ins)
        tensors = {number: leaf for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        versions = {number: tensor._version for number, tensor in tensors.items()}
        written, own_written = call_tree.watched(named, calls.packages), own_writes(block, calls.packages)
        with attention.capturing(options, calls.packages, block) as attended, self.watching():
            result = called(block, named)
        if written():
            raise UnknownArgumentError("it writes into a list, a dictionary or an object that it is given")
        if elsewhere := own_written():
            raise UnknownArgumentError(f"it writes into {elsewhere}")
        if returned:
            raise UnknownArgumentError("it calls a function in some calls and not in others")
        self.attention = "called" if attended.calls else "captured"
        self.changed = tuple(number for number, tensor in tensors.items() if tensor._version != versions[number])
        self.options = options.guards()
        self.results, result_leaves = flatten(result, calls.packages)
        if call_tree.functions_in(self.results):
            raise UnknownArgumentError("a result that is a function")
        number_of = {id(tensor): number for number, tensor in tensors.items()}
        self.aliases = tuple(
            number_of.get(id(one)) if isinstance(one, torch.Tensor) else rule_of(one, values) for one in result_leaves
        )
        fresh = [one for one, alias in zip(result_leaves, self.aliases, strict=True) if alias is None]
        results = [one for one in fresh if isinstance(one, torch.Tensor)]
        if len(results) < len(fresh):
            raise UnknownArgumentError("a result that is a number and follows from no size")
        taken = {memory_of(one) for one in (*tensors.values(), *block.parameters(), *block.buffers())}
        outputs = (*_separate(results, taken), *(tensors[number] for number in self.mutated))
        return attended.before(outputs) if self.last_unused else outputs

    def _recorded_options(self) -> RecordedOptions:
        plain = {**_PATCHES, **self.calls.options}
        if self.calls.attention == "called":
            stand_ins = self.settings.stand_ins
            return RecordedOptions({**plain, **stand_ins}, followed=stand_ins)
        return RecordedOptions({**plain, **self.settings.overrides}, self.settings.overrides)

    def _leaves(self, inputs: Sequence[torch.Tensor], values: Sequence[int]) -> list[Leaf]:
        """The leaves of the call: what the block changes is copied first, numbers are lengths.

        Args:
            values: of the symbols.
        """
        forms = leaf_forms(self.calls.form)
        for lower, upper in self.sizes.bounds:
            assume(values[lower] <= values[upper])
        for (leaf, dim), rule in self.sizes.rules.items():
            if rule.kind != "fixed" and (leaf, dim) not in self.sizes.symbols:
                assume(inputs[leaf].shape[dim] == rule.value(values))
        return [
            self.sizes.rules[number, 0].value(values)
            if isinstance(form, NumberForm)
            else tensor.clone()
            if number in self.mutated
            else tensor
            for number, (form, tensor) in enumerate(zip(forms, inputs, strict=True))
        ]


def _separate(results: Sequence[torch.Tensor], taken: set[int]) -> list[torch.Tensor]:
    """A block's results, each in memory of its own.

    Args:
        taken: memory of other tensors.

    Raises:
        UnknownArgumentError: whoever changes one in place would change another tensor, too.
    """
    memories = [memory_of(one) for one in results]
    for memory in dict.fromkeys(memories):
        among = [one for one, its_own in zip(results, memories, strict=True) if its_own == memory]
        if memory in taken or not apart(among):
            raise UnknownArgumentError("a result that shares memory with another tensor")
    return [
        one.clone(memory_format=torch.contiguous_format) if memories.count(memory) > 1 else one
        for one, memory in zip(results, memories, strict=True)
    ]


def capture_block(
    block: torch.nn.Module,
    calls: BlockCalls,
    device: torch.device,
    settings: Settings = Settings(),
    watching: Watching = contextlib.nullcontext,
) -> CapturedBlock:
    """Export a block for every call that its records' rules admit.

    Args:
        block: with weights of zeros, or any other.
        settings: the client's.
        watching: lasts while the block's own code runs, and nothing else does.

    Raises:
        CaptureError: the block's code branches on a size or a value, returns something else than tensors, or does with
            the options what no graph can honour.
    """
    sizes = SizeRules.infer(calls.records, calls.served)
    first: CapturedBlock | None = None
    for example in with_examples(sizes, calls.records):
        with contextlib.suppress(CaptureError):
            captured = _captured(block, calls, example, device, settings, watching)
            if not has_ones(captured.program):
                return captured
            first = first or captured
    return first or _captured(block, calls, sizes, device, settings, watching)


def _captured(
    block: torch.nn.Module,
    calls: BlockCalls,
    sizes: SizeRules,
    device: torch.device,
    settings: Settings,
    watching: Watching,
) -> CapturedBlock:
    """Export a block for the calls that rules admit. Raises CaptureError."""
    inputs, dims = examples(calls.form, sizes, device)
    mutated: tuple[int, ...] = ()
    last_unused = False
    for _ in range(4):  # a capture shows what a block changes, what it takes slices by, and which results it uses
        try:
            functions = _called_functions(calls, sizes)
            call = BlockToCapture(block, calls, settings, Assumed(sizes, functions, mutated, last_unused), watching)
            around = functools.partial(_rewritten, settings)
            program = exported(call, inputs, (dims,), "block", around, prefer_deferred_runtime_asserts_over_guards=True)
        except (UnreadableOptionsError, UnknownArgumentError) as error:
            raise CaptureError(f"The block could not be captured: {error}; it runs uncompiled instead.") from error
        narrower = sizes.bounded(slices(program, sizes), [*calls.records, *calls.served])
        narrower = narrower.same(same_symbols(program, sizes))
        unused = last_unused or attention.last_is_unused(program)
        if (call.seen.changed, narrower, unused) == (mutated, sizes, last_unused):
            break
        mutated, sizes, last_unused = call.seen.changed, narrower, unused
    seen = call.seen
    if seen.changed != seen.mutated:
        raise CaptureError("The block changes other arguments each time it is called; it runs uncompiled instead.")
    assert seen.results is not None
    signature = CallRules(
        calls.form,
        sizes.within(ranges(program, sizes)),
        seen.options,
        seen.mutated,
        seen.results,
        seen.aliases,
        seen.attention,
        seen.functions,
    )
    return CapturedBlock(program, signature, call, signature.served_shapes([*calls.records, *calls.served]))


@contextlib.contextmanager
def _rewritten(settings: Settings) -> Iterator[None]:
    with settings.rewrites(), contiguous_where_asked():
        yield


def _called_functions(calls: BlockCalls, sizes: SizeRules) -> CalledFunctions:
    """How functions among the arguments are called. Raises UnknownArgumentError."""
    if not call_tree.functions_in(calls.form):
        return CalledFunctions()
    if not calls.results:
        raise UnknownArgumentError("no further call could be made, to see what its function returns")
    return CalledFunctions.infer(sizes, calls.results)
