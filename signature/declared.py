"""The calls that a whole module's graph serves, as its family declares them: inputs by name, sizes in ranges.

What a family declares is turned into the `SizeRules` that are inferred for blocks, so that a call is checked, cut and
captured in one way. Compiled graphs do not check their inputs: a wrong batch, height, dtype or stride gives wrong
numbers or reads out of bounds. This check is the only thing between a call and a wrong image.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..common import reasons
from ..common.reasons import Reason
from ..common.tensor_meta import dtype_name
from .rule import LeafDim, Rule
from .size_rules import SizeRules

if TYPE_CHECKING:
    import torch

_FOLLOWING = re.compile(r"(\w+?)([*/])(\d+)")


@dataclass(frozen=True)
class Dim:
    """A named dimension: `low..high` in steps of `multiple`; exact when both ends are equal.

    Attributes:
        pixels: of an image per unit, for reasons; 0: it is no side of an image.
    """

    name: str
    low: int
    high: int
    multiple: int = 1
    pixels: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if not (1 <= self.low <= self.high) or self.multiple < 1:
            raise ValueError(f"{self.name}: {self.low}..{self.high} in steps of {self.multiple} is no range")
        if self.low % self.multiple or self.high % self.multiple:
            raise ValueError(f"{self.name}: both ends of {self.low}..{self.high} must be multiples of {self.multiple}")

    @property
    def exact(self) -> bool:
        return self.low == self.high

    def refusal(self, size: int) -> Reason | None:
        """Why `size` is outside the range, or None when it is inside."""
        if self.exact and size != self.low:
            return reasons.OtherSize(self.name, size, self.low, self.pixels)
        if not self.low <= size <= self.high:
            return reasons.OutOfRange(self.name, size, self.low, self.high, self.pixels)
        if size % self.multiple:
            return reasons.NotAMultiple(self.name, size, self.multiple, self.pixels)
        return None


@dataclass(frozen=True)
class TensorSpec:
    """One input.

    Attributes:
        dims: for each dimension a fixed length, the name of a `Dim`, or what follows from one: `height*8` is eight
            times the height, `height/2` half of it, rounded up as a convolution of stride 2 does.
        dtype: without the `torch.` prefix.
    """

    name: str
    dims: tuple[int | str, ...]
    dtype: str


def named_in(expression: str) -> str:
    """Return the name of the dimension that a `TensorSpec` refers to.

    >>> named_in("height*8"), named_in("batch")
    ('height', 'batch')
    """
    match = _FOLLOWING.fullmatch(expression)
    return match[1] if match else expression


@dataclass(frozen=True)
class ShapeRange:
    """The calls one graph serves: its named dimensions and its inputs, in order."""

    dims: tuple[Dim, ...]
    inputs: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        names = [d.name for d in self.dims]
        used = {d for i in self.inputs for d in i.dims if isinstance(d, str)}
        followed = {*map(named_in, used)}
        if len(set(names)) != len(names) or followed != set(names) or not followed <= used:
            raise ValueError(f"named dimensions {sorted(names)} and used ones {sorted(used)} differ")

    def dim(self, name: str) -> Dim:
        return next(d for d in self.dims if d.name == name)

    @functools.cached_property
    def exact(self) -> bool:
        return all(d.exact for d in self.dims)

    @functools.cached_property
    def rules(self) -> SizeRules:
        """The sizes of the inputs, which are the leaves; the dimensions are the symbols, in their order."""
        numbers = {dim.name: number for number, dim in enumerate(self.dims)}
        rules: dict[LeafDim, Rule] = {}
        for leaf, spec in enumerate(self.inputs):
            for dim, expression in enumerate(spec.dims):
                rules[leaf, dim] = _rule(expression, numbers)
        read = {rule.symbols: place for place, rule in reversed(rules.items()) if rule.kind == "symbol"}
        return SizeRules(
            tuple(read[(number,)] for number in numbers.values()),
            rules,
            tuple((dim.low, dim.high) for dim in self.dims),
            steps=tuple(dim.multiple for dim in self.dims),
        )

    def refusal(self, tensors: Sequence[torch.Tensor], device: torch.device) -> Reason | None:
        """Why no graph for this range on that device serves a call with these tensors, or None."""
        if len(tensors) != len(self.inputs):
            return reasons.InputCount(len(tensors), len(self.inputs))
        for spec, tensor in zip(self.inputs, tensors, strict=True):
            dtype = dtype_name(tensor.dtype)
            if tensor.device != device:
                return reasons.InputDevice(spec.name, str(tensor.device), str(device))
            if dtype != spec.dtype:
                return reasons.InputDtype(spec.name, dtype, spec.dtype)
            if tensor.ndim != len(spec.dims):
                return reasons.InputRank(spec.name, tensor.ndim, len(spec.dims))
        sizes = self.sizes(tensors)
        for (leaf, number), rule in self.rules.rules.items():
            spec, shape = self.inputs[leaf], tuple(tensors[leaf].shape)
            wanted = rule.value([*sizes.values()])
            if shape[number] != wanted and rule.kind == "symbol":
                return reasons.InputsDisagree(spec.name, str(spec.dims[number]), shape[number], wanted)
            if shape[number] != wanted:
                return reasons.InputLength(spec.name, shape, shape[number], wanted)
        return next((why for dim in self.dims if (why := dim.refusal(sizes[dim.name])) is not None), None)

    def sizes(self, tensors: Sequence[torch.Tensor]) -> dict[str, int]:
        """Return the value of every named dimension in a call with these tensors, in their order."""
        places = zip(self.dims, self.rules.symbols, strict=True)
        return {dim.name: tensors[leaf].shape[number] for dim, (leaf, number) in places}

    def shapes(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the inputs' shapes where the named dimensions have these sizes."""
        shapes = self.rules.shapes([sizes[dim.name] for dim in self.dims])
        return [shapes.get(leaf, ()) for leaf in range(len(self.inputs))]

    def to_json(self) -> dict[str, Any]:
        return {
            "dims": {d.name: [d.low, d.high, d.multiple] for d in self.dims},
            "inputs": [[i.name, list(i.dims), i.dtype] for i in self.inputs],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ShapeRange:
        return cls(
            tuple(Dim(name, *values) for name, values in data["dims"].items()),
            tuple(TensorSpec(name, tuple(dims), dtype) for name, dims, dtype in data["inputs"]),
        )


def _rule(expression: int | str, numbers: Mapping[str, int]) -> Rule:
    """The rule of a dimension of a `TensorSpec`, with its symbol by number."""
    if isinstance(expression, int):
        return Rule("fixed", expression)
    match = _FOLLOWING.fullmatch(expression)
    if match is None:
        return Rule("symbol", symbols=(numbers[expression],))
    return Rule("multiple" if match[2] == "*" else "fraction", int(match[3]), (numbers[match[1]],))
