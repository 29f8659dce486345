"""Functions that a block is called with, such as the attention of this very call: a graph calls them, too.

Such a function may hold tensors and write to a cache, so it is no part of a graph, and is called for a result that is
used alone. How often a block calls it, and what sizes its results have, is noted while the model runs at several sizes.
A graph is compared with eager with `fold` in place of it: it has no effects, and whatever it is given shows in what it
returns.
"""

from __future__ import annotations

import contextlib
import functools
import math
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from .call_tree import OPTIONS, UnknownArgumentError, flatten
from .rule import Rule
from .size_rules import SizeRules, Sizes

_DEEPEST = 3  # containers and functions in each other that are looked into

Function: TypeAlias = Callable[..., Any]
Shape: TypeAlias = "tuple[int, ...] | Literal['nothing', 'other']"  # of a result: a tensor's, nothing, something else
Result: TypeAlias = "tuple[int, Shape]"  # which function; what it returned


@dataclass(frozen=True)
class CalledFunctions:
    """The calls of functions in one call of a block, in their order: the number of each function, and the rules of its
    result's sizes; None: it returns nothing."""

    calls: tuple[tuple[int, tuple[Rule, ...] | None], ...] = ()

    @classmethod
    def infer(cls, sizes: SizeRules, records: Sequence[tuple[Sizes, Sequence[Result]]]) -> CalledFunctions:
        """Infer the rules from some calls of a block.

        Args:
            sizes: of the block's calls.
            records: sizes of the leaves of a call, and what the functions returned in it.

        Raises:
            UnknownArgumentError: no graph can call them.
        """
        ways = {tuple((number, _dims(shape)) for number, shape in results) for _, results in records}
        if len(ways) != 1:
            raise UnknownArgumentError("it calls a function in some calls and not in others")
        columns = [tuple(leaves[leaf][dim] for leaves, _ in records) for leaf, dim in sizes.symbols]
        calls: list[tuple[int, tuple[Rule, ...] | None]] = []
        for position, (number, dims) in enumerate(ways.pop()):
            if dims == "nothing":
                calls.append((number, None))
                continue
            if dims == "other":
                raise UnknownArgumentError("a function that it is given returns no tensor like the first one it takes")
            shapes = [results[position][1] for _, results in records]
            rules = [Rule.of([int(shape[dim]) for shape in shapes], columns) for dim in range(dims)]
            rules_of_dims = tuple(rule for rule in rules if rule is not None)
            if len(rules_of_dims) < dims:
                raise UnknownArgumentError("the sizes of what a function returns follow no rule")
            calls.append((number, rules_of_dims))
        return cls(tuple(calls))

    def shapes(self, values: Sequence[int]) -> list[list[int] | None]:
        """Return the shape of each result. `values`: of the symbols; symbolic ones give symbolic shapes."""
        return [None if rules is None else [rule.value(values) for rule in rules] for _, rules in self.calls]

    def to_json(self) -> list[Any]:
        """Return everything, JSON-ready."""
        return [
            [number, *([None] if rules is None else (rule.to_json() for rule in rules))] for number, rules in self.calls
        ]

    @classmethod
    def from_json(cls, data: Any) -> CalledFunctions:
        """Read what `to_json` made. Raises TypeError or ValueError: it is something else."""
        return cls(
            tuple(
                (int(number), None if rules == [None] else tuple(map(Rule.from_json, rules))) for number, *rules in data
            )
        )


def _dims(shape: Shape) -> int | Literal["nothing", "other"]:
    return len(shape) if isinstance(shape, tuple) else shape


def noting(functions: Sequence[Function], results: list[Result], packages: Sequence[str]) -> list[Function]:
    """Return functions that do the same, and note what they return."""

    def noted(number: int, function: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            first = next(iter(tensors_of(args, kwargs, packages)), None)
            like = None if first is None else (first.dtype, first.device)
            is_like = isinstance(result, torch.Tensor) and (result.dtype, result.device) == like
            nothing = result is None and first is not None
            results.append((number, tuple(result.shape) if is_like else "nothing" if nothing else "other"))
            return result

        return call

    return [noted(number, function) for number, function in enumerate(functions)]


def tensors_of(args: Sequence[Any], kwargs: dict[str, Any], packages: Sequence[str]) -> Iterator[torch.Tensor]:
    """The tensors that a function is given, in their order; those of objects that cannot be taken apart are none."""
    for value in (*args, *(one for name, one in kwargs.items() if name != OPTIONS)):
        try:
            leaves = flatten(value, packages)[1]
        except UnknownArgumentError:
            continue
        yield from (one for one in leaves if isinstance(one, torch.Tensor))


def folding(count: int, shapes: Sequence[Sequence[int] | None], packages: Sequence[str]) -> list[Function]:
    """Return so many functions that fold what they are given, for one call of a block.

    Args:
        shapes: of their results, in the order of their calls; None: nothing is returned.
    """
    left = iter(shapes)

    def call(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        shape = next(left)
        return None if shape is None else fold([*tensors_of(args, kwargs, packages)], shape)

    return [call] * count


def fold(tensors: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor of a shape to which every value of some tensors adds, as large as these are."""
    first, count = tensors[0], math.prod(shape)
    dtype = torch.promote_types(first.dtype, torch.float32)
    total = torch.zeros(count, dtype=dtype, device=first.device)
    layers = 0
    for tensor in tensors if count else ():
        values = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        flat = values.reshape(-1).to(first.device, dtype)
        rows = torch.nn.functional.pad(flat, (0, -len(flat) % count)).view(-1, count)
        total += rows.sum(0)
        layers += len(rows)
    return (total / max(layers, 1) ** 0.5).to(first.dtype).view(tuple(shape))


def reaches(function: Function, tensors: Sequence[torch.Tensor], options: Any = None) -> bool:
    """Whether a function itself holds memory of some tensors: it would see what a graph has not yet written there, or
    write what the graph has read already.

    Args:
        options: of the call, which are not looked into.
    """
    memory = {one.untyped_storage().data_ptr() for one in tensors}
    held = (one for one in _held(function, options, _DEEPEST) if isinstance(one, torch.Tensor))
    return any(one.untyped_storage().data_ptr() in memory for one in held)


def _held(value: Any, options: Any, depth: int) -> Iterator[Any]:
    """A value, and what it holds: a function its closure, a method its object, a container its items."""
    yield value
    parts: list[Any] = []
    match value:
        case list() | tuple():
            parts += value
        case dict():
            parts += value.values() if value is not options else ()
        case functools.partial():
            parts += (value.func, *value.args, *value.keywords.values())
        case types.MethodType():
            parts += (value.__func__, *getattr(value.__self__, "__dict__", {}).values())
        case types.FunctionType():
            parts += value.__defaults__ or ()
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # it is empty
                    parts.append(cell.cell_contents)
    for part in parts if depth else ():
        yield from _held(part, options, depth - 1)
