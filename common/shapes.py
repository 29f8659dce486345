"""Shapes as the pack speaks of them: named dimensions, ranges, calls, and whether a graph admits a call.

Compiled graphs do not check their inputs: a wrong batch, height, dtype or stride gives wrong numbers or
reads out of bounds. Admission here is therefore the only thing between a call and a wrong image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import reasons
from .reasons import Reason

JSON = dict[str, Any]
_FOLLOWING = re.compile(r"(\w+?)([*/])(\d+)")


@dataclass(frozen=True)
class Admitted:
    """The graph can serve the call; `sizes` holds the value of every named dimension."""

    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Refused:
    """The graph cannot serve the call. `passing`: the very next call may be served."""

    reason: Reason
    passing: bool = False

    @property
    def text(self) -> str:
        """The reason as users read it."""
        return self.reason.text


@dataclass(frozen=True)
class Dim:
    """A named dimension: `low..high` in steps of `multiple`; exact when both ends are equal."""

    name: str
    low: int
    high: int
    multiple: int = 1

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
            return reasons.OtherSize(self.name, size, self.low)
        if not self.low <= size <= self.high:
            return reasons.OutOfRange(self.name, size, self.low, self.high)
        if size % self.multiple:
            return reasons.NotAMultiple(self.name, size, self.multiple)
        return None


@dataclass(frozen=True)
class Following:
    """A size that follows from a named dimension: `times` it, divided by `over` and rounded up."""

    name: str
    times: int = 1
    over: int = 1

    def __call__(self, size: int) -> int:
        """Return the size where the dimension has that one."""
        return -(-size * self.times // self.over)


def following(expression: str) -> Following:
    """Read a dimension of a `TensorSpec`: a name, or e.g. `height*8` or `height/2`."""
    match = _FOLLOWING.fullmatch(expression)
    if match is None:
        return Following(expression)
    number = int(match[3])
    return Following(match[1], number) if match[2] == "*" else Following(match[1], over=number)


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


@dataclass(frozen=True)
class TensorCall:
    """What is known of one input of one call."""

    shape: tuple[int, ...]
    dtype: str
    device: str


@dataclass(frozen=True)
class ShapeRange:
    """The calls one graph serves: its named dimensions and its inputs, in order."""

    dims: tuple[Dim, ...]
    inputs: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        names = [d.name for d in self.dims]
        used = {d for i in self.inputs for d in i.dims if isinstance(d, str)}
        followed = {following(d).name for d in used}
        if len(set(names)) != len(names) or followed != set(names) or not followed <= used:
            raise ValueError(f"named dimensions {sorted(names)} and used ones {sorted(used)} differ")

    def dim(self, name: str) -> Dim:
        return next(d for d in self.dims if d.name == name)

    @property
    def exact(self) -> bool:
        return all(d.exact for d in self.dims)

    def admits(self, calls: Sequence[TensorCall], device: str) -> Admitted | Refused:
        """Whether a call with these inputs, all on `device`, is inside the range; the reason when it is not."""
        if len(calls) != len(self.inputs):
            return Refused(reasons.InputCount(len(calls), len(self.inputs)))
        sizes: dict[str, int] = {}
        for spec, call in zip(self.inputs, calls, strict=True):
            if call.device != device:
                return Refused(reasons.InputDevice(spec.name, call.device, device))
            if call.dtype != spec.dtype:
                return Refused(reasons.InputDtype(spec.name, call.dtype, spec.dtype))
            if len(call.shape) != len(spec.dims):
                return Refused(reasons.InputRank(spec.name, len(call.shape), len(spec.dims)))
            for expected, size in zip(spec.dims, call.shape, strict=True):
                if isinstance(expected, int):
                    if size != expected:
                        return Refused(reasons.InputLength(spec.name, call.shape, size, expected))
                elif following(expected).name == expected and sizes.setdefault(expected, size) != size:
                    return Refused(reasons.InputsDisagree(spec.name, expected, size, sizes[expected]))
        for spec, call in zip(self.inputs, calls, strict=True):
            for wanted, size in zip(self.lengths(spec, sizes), call.shape, strict=True):
                if size != wanted:
                    return Refused(reasons.InputLength(spec.name, call.shape, size, wanted))
        for dim in self.dims:
            refusal = dim.refusal(sizes[dim.name])
            if refusal is not None:
                return Refused(refusal)
        return Admitted(sizes)

    def lengths(self, spec: TensorSpec, sizes: Mapping[str, int]) -> list[int]:
        """Return an input's shape where the named dimensions have these sizes."""
        by_name = ((d, None) if isinstance(d, int) else (0, following(d)) for d in spec.dims)
        return [length if rule is None else rule(sizes[rule.name]) for length, rule in by_name]

    def to_json(self) -> JSON:
        return {
            "dims": {d.name: [d.low, d.high, d.multiple] for d in self.dims},
            "inputs": [[i.name, list(i.dims), i.dtype] for i in self.inputs],
        }

    @classmethod
    def from_json(cls, data: JSON) -> ShapeRange:
        return cls(
            tuple(Dim(name, *values) for name, values in data["dims"].items()),
            tuple(TensorSpec(name, tuple(dims), dtype) for name, dims, dtype in data["inputs"]),
        )
