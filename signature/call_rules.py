"""The call rules of a graph: all that a call is checked with, and how the graph's results become the module's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch

from . import call_tree
from .call_tree import Form, NumberForm, functions_in, leaf_forms
from .functions import CalledFunctions
from .matching import finisher
from .option_reads import OptionGuards
from .rule import Rule
from .size_rules import SizeRules, Sizes

# How a call attends: its graph has torch's attention in it, or calls a function of the user's choice.
Attention: TypeAlias = Literal["captured", "called"]
# What a leaf of the results is: a leaf of the arguments by its number, a whole number that follows from sizes; None:
# what the graph returns.
Alias: TypeAlias = "int | Rule | None"


@dataclass(frozen=True)
class CallRules:
    """Which calls of a block one graph serves, and what it takes and gives.

    The graph takes every tensor of the arguments in their order, and an empty tensor `[number, 0]` for each whole
    number, whose length it reads. It changes nothing that it is given: it returns those results that are no argument,
    then the new values of the arguments that the block changes in place.

    Attributes:
        arguments: the form of the arguments by name.
        sizes: of their leaves.
        options: what the model's options must be like.
        mutated: numbers of the leaves that the block changes in place.
        results: the form of what the block returns.
        aliases: what each leaf of the results is.
        attention: whether the graph has the attention in it, or calls a function.
        functions: what it calls of the functions among the arguments.
    """

    arguments: Form
    sizes: SizeRules
    options: OptionGuards
    mutated: tuple[int, ...]
    results: Form
    aliases: tuple[Alias, ...]
    attention: Attention = "captured"
    functions: CalledFunctions = field(default_factory=CalledFunctions)

    @property
    def calls_out(self) -> bool:
        """Whether the graph calls functions of the call's own process."""
        return self.attention == "called" or bool(self.functions.calls)

    def trial_inputs(self, device: torch.device) -> list[torch.Tensor]:
        """Return what the graph takes for some small call, with ones for values."""
        shapes = self.sizes.example_sizes()
        leaves: list[torch.Tensor | int] = [
            shapes[number][0]
            if isinstance(form, NumberForm)
            else torch.ones(shapes.get(number, ()), dtype=call_tree.DTYPES[form.dtype], device=device)
            for number, form in enumerate(leaf_forms(self.arguments))
        ]
        return self.inputs(leaves, device)

    def served_shapes(self, records: Sequence[Sizes]) -> list[list[tuple[int, ...]]]:
        """Return the shapes of what the graph takes in those calls of some that fit and whose slices take something."""
        forms = [*leaf_forms(self.arguments)]
        return [
            [(*shape, 0) if isinstance(form, NumberForm) else shape for form, shape in zip(forms, sizes, strict=True)]
            for sizes in dict.fromkeys(tuple(map(tuple, record)) for record in records)
            if self.sizes.fits(sizes) and self.sizes.slices_take_some(sizes)
        ]

    def inputs(self, leaves: Sequence[torch.Tensor | int], device: torch.device) -> list[torch.Tensor]:
        """Return what the graph takes for the leaves of a call that fits."""
        return [leaf if isinstance(leaf, torch.Tensor) else torch.empty(leaf, 0, device=device) for leaf in leaves]

    def part(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...] | None:
        """Return what the graph takes for a smaller call, cut from what it takes for one; None: see `SizeRules.part`.

        Nor is a call cut whose functions the graph calls: they may hold tensors of all of it.
        """
        leaves = leaf_forms(self.arguments)
        sizes = [
            one.shape[:1] if isinstance(form, NumberForm) else one.shape
            for form, one in zip(leaves, inputs, strict=True)
        ]
        part = None if self.calls_out else self.sizes.part(sizes)
        if part is None:
            return None
        cut: list[torch.Tensor] = []
        for tensor, shape in zip(inputs, part, strict=True):
            for dim, size in enumerate(shape):
                tensor = tensor.narrow(dim, 0, size)
            cut.append(tensor.clone(memory_format=torch.contiguous_format))
        return tuple(cut)

    def finish(self, leaves: Sequence[Any], outputs: Sequence[torch.Tensor]) -> Any:
        """Return what the block returns: write the new values into the caller's tensors, and put the results together.

        Args:
            leaves: of the call's arguments.
            outputs: of the graph.
        """
        return self.finisher()(leaves, outputs)

    def finisher(self) -> Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]:
        """Return `finish` as a function: the values are written into the caller's own tensors, whoever else holds them
        sees that, too, and the block returns these."""
        return finisher(self.results, self.aliases, self.mutated, self.sizes.symbols)

    def to_json(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return {
            "arguments": call_tree.to_json(self.arguments),
            "sizes": self.sizes.to_json(),
            "options": self.options.to_json(),
            "mutated": [*self.mutated],
            "results": call_tree.to_json(self.results),
            "aliases": [one.to_json() if isinstance(one, Rule) else one for one in self.aliases],
            **({"attention": "called"} if self.attention == "called" else {}),
            **({"functions": self.functions.to_json()} if self.functions.calls else {}),
        }

    @classmethod
    def from_json(cls, data: Any, packages: Sequence[str] = ()) -> CallRules:
        """Read what `to_json` made.

        Args:
            packages: whose classes it may name.

        Raises:
            ValueError: it is something else, or its parts do not belong together.
        """
        try:
            signature = cls(
                call_tree.from_json(data["arguments"], packages),
                SizeRules.from_json(data["sizes"]),
                OptionGuards.from_json(data["options"]),
                tuple(map(int, data["mutated"])),
                call_tree.from_json(data["results"], packages),
                tuple(map(_alias, data["aliases"])),
                "called" if "attention" in data else "captured",
                CalledFunctions.from_json(data.get("functions", ())),
            )
            ones = [1] * len(signature.sizes.symbols)
            signature.functions.shapes(ones)
            for one in signature.aliases:
                if isinstance(one, Rule):
                    one.value(ones)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"no call rules: {error}") from error
        leaves = leaf_forms(signature.arguments)
        tensors = {number for number, one in enumerate(leaves) if not isinstance(one, NumberForm)}
        counts = [1 if isinstance(one, NumberForm) else one.dims for one in leaves]
        dims = {(number, dim) for number, count in enumerate(counts) for dim in range(count)}
        if (
            signature.sizes.rules.keys() != dims
            or not {*signature.mutated} <= tensors
            or not {one for one in signature.aliases if isinstance(one, int)} <= tensors
            or [isinstance(one, Rule) for one in signature.aliases]
            != [isinstance(one, NumberForm) for one in leaf_forms(signature.results)]
            or {number for number, _ in signature.functions.calls} - {*range(functions_in(signature.arguments))}
        ):
            raise ValueError("no call rules: its parts do not belong together")
        return signature


def _alias(data: Any) -> Alias:
    return Rule.from_json(data) if isinstance(data, list) else None if data is None else int(data)
