"""A kind of block in this process: whether a call is one of it, and its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.errors import in_brief
from ...common.outputs import Output, output_of, tensors_of
from ...common.reasons import Reason
from ...common.shapes import Refused
from ...compiler.blocks import call_tree
from ...compiler.blocks.call_tree import Form, Leaf, NumberForm, leaf_forms
from ...compiler.blocks.parameters import as_call, options_of
from ...compiler.blocks.signature import BlockSignature
from ..binding import Held
from ..counters import Counters
from ..loaded_graph import LoadedGraph

_MOST_SIZES = 256  # of which is remembered whether they fit


@dataclass(frozen=True)
class BlockCall:
    """One call of a block, taken apart.

    Attributes:
        module: the block with all its weights where a graph can read them.
        named: its arguments by name.
        leaves: of these.
    """

    block: torch.nn.Module
    module: torch.nn.Module
    named: Mapping[str, Any]
    leaves: Sequence[Leaf]


class KindGraph:
    """A kind of block: one structure, called in one form.

    Args:
        name: of the blocks' class, for reasons.
        found: its graph, or why there is none.

    Attributes:
        refusal: why no call of the kind is served, or None.
        replaced: why none is served now, as a function of the model was replaced; or None.
    """

    def __init__(self, name: str, form: Form, found: LoadedGraph | Refused, packages: Sequence[str]) -> None:
        self.name = name
        self.form = form
        self.match: Callable[[Any], list[Leaf] | None] = call_tree.matcher(form)
        self.graph = found if isinstance(found, LoadedGraph) else None
        self.replaced: Reason | None = None
        self.refusal: Reason | None = found.reason if isinstance(found, Refused) else None
        self._numbers = [n for n, one in enumerate(leaf_forms(form)) if isinstance(one, NumberForm)]
        self._tensors = [n for n, one in enumerate(leaf_forms(form)) if not isinstance(one, NumberForm)]
        self._packages = tuple(packages)
        self._fitting: dict[Any, Mapping[str, int] | None] = {}
        if self.graph is not None:
            try:
                self.signature = BlockSignature.from_json(self.graph.entry.manifest.signature, packages)
                if self.signature.arguments != form:
                    self.refusal = reasons.OtherKey("form of the arguments")
            except ValueError as error:  # it returns objects of a package that this client does not take apart
                self.refusal = reasons.CallFailed("ValueError", in_brief(error, 120))

    def serve(
        self, call: BlockCall, options: Any, whole: bool, held: Held | None, counters: Counters
    ) -> tuple[Any] | Refused:
        """What a block returns for a call, computed by the graph; or why not, and then nothing was changed.

        Args:
            options: the model's, of this call.
            whole: see `LoadedGraph.call`.
        """
        graph = self.graph
        if self.refusal is not None or graph is None:
            return Refused(self.refusal or reasons.NoGraph())
        if options is not None and type(options) is not dict:
            return Refused(reasons.BlockArgument(f"options of type {type(options).__name__}"))
        signature, leaves = self.signature, call.leaves
        path = signature.options.refused(options)
        if path is not None:
            return Refused(reasons.BlockOption(".".join(path)))
        sizes = self._sizes(leaves)
        if sizes is None:
            return Refused(reasons.BlockSizes(self.name))
        inputs: list[Any] = [*leaves]
        for number in self._tensors:
            tensor = inputs[number]
            if tensor.device != graph.device:
                return Refused(reasons.BlockElsewhere(self.name, str(tensor.device)))
            inputs[number] = _plain(tensor)
        for number in self._numbers:
            inputs[number] = torch.empty(inputs[number], 0, device=graph.device)
        if signature.mutated and self._shares(leaves):
            return Refused(reasons.BlockShared(self.name))

        def eager(*given: torch.Tensor) -> Output:
            return self._eager(call, given)

        result = graph.call(call.module, tuple(inputs), sizes, eager, counters, whole, held)
        if isinstance(result, Refused):
            return result
        # A result that is eager's after all is right, too: of the same tensors.
        if result.refusal is not None:
            self.refusal = result.refusal
        return (signature.finish(leaves, tensors_of(result.output)),)

    def _sizes(self, leaves: Sequence[Leaf]) -> Mapping[str, int] | None:
        """The values of the graph's symbols by names; None: it does not serve these sizes."""
        sizes = tuple([leaf.shape if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
        try:
            return self._fitting[sizes]
        except KeyError:
            pass
        if len(self._fitting) >= _MOST_SIZES:
            self._fitting.clear()
        rules = self.signature.sizes
        by_leaf = [tuple(one) if isinstance(one, torch.Size) else (one,) for one in sizes]
        found = None
        if rules.fits(by_leaf):
            found = {f"size {n}": by_leaf[leaf][dim] for n, (leaf, dim) in enumerate(rules.symbols)}
        self._fitting[sizes] = found
        return found

    def _shares(self, leaves: Sequence[Any]) -> bool:
        """Whether a tensor that the block changes shares memory with another one of the call."""
        memory = [leaves[number].untyped_storage().data_ptr() for number in self._tensors]
        changed = {leaves[number].untyped_storage().data_ptr() for number in self.signature.mutated}
        return len(changed) != len(self.signature.mutated) or sum(one in changed for one in memory) != len(changed)

    def _eager(self, call: BlockCall, given: Sequence[torch.Tensor]) -> Output:
        """The block's own forward as a function of a graph's inputs, which it leaves as they are."""
        signature = self.signature
        leaves: list[Any] = [*given]
        for number in self._numbers:
            leaves[number] = given[number].shape[0]
        for number in signature.mutated:
            leaves[number] = given[number].clone()
        named = call_tree.rebuild(self.form, leaves, options_of(call.named))
        args, kwargs = as_call(named)
        result = type(call.block).forward(call.block, *args, **kwargs)
        form, found = call_tree.flatten(result, self._packages)
        if form != signature.results:
            raise ValueError("a block returned something else than its graph")
        fresh = [one for one, alias in zip(found, signature.aliases, strict=True) if alias is None]
        return output_of([*fresh, *(leaves[number] for number in signature.mutated)])  # type: ignore[list-item]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, aligned and with its values in memory, as compiled code expects."""
    if tensor.is_contiguous() and not tensor.data_ptr() % 16 and not tensor.is_neg():
        return tensor
    tensor = tensor.resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor
