"""What a family of models tells about its calls, free of any framework.

A family is one value. It says which modules it serves, how a call's arguments become named tensors, in which sizes
these may differ between the calls of one graph, and how the module runs with them, by eager and while it is captured.
Requests, checks and graphs are the same for all families: `Component`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from ..common import reasons
from ..common.outputs import Output
from ..common.reasons import Reason
from ..common.refused import Refused
from ..common.tensor_meta import dtype_name
from ..signature.declared import Dim, ShapeRange, TensorSpec

Shapes = Literal["any size", "exact"]
Tensors = Mapping[str, torch.Tensor]  # a graph's inputs by name, in their order
# Of inputs. A process that only describes calls, with tensors without memory, adds their class.
TENSORS: set[type] = {torch.Tensor}
PREFIX = "module."  # of the weights' names in a graph: `ModuleCall` holds the module under it


@dataclass(frozen=True)
class Axis:
    """A size in which the calls of one graph may differ.

    Attributes:
        low, high, step: of the graph for any size, in units of the inputs.
        pixels: of an image per unit; 0: no side of an image.
        text: how one size of it reads in the label of a graph for one size; sides of images read `1024x768`.
    """

    name: str
    low: int
    high: int
    step: int = 1
    pixels: int = 0
    text: str = ""


@dataclass(frozen=True)
class Input:
    """A tensor that a graph takes.

    Attributes:
        dims: for each dimension an axis, what follows from one (`height*8`, `height/2`), a length, or None: whatever
            length the call has there is part of the graph.
        argument: of the module's method that it comes from; empty: the one of its name.
        dtype: without the `torch.` prefix; empty: whatever dtype the call has is part of the graph.
        optional: whether there are calls without it, which have a graph of their own.
    """

    name: str
    dims: tuple[int | str | None, ...]
    argument: str = ""
    dtype: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Ranged:
    """Which calls a graph is to serve.

    Attributes:
        sizes: of the call at hand, by axis.
        widest: the range of all calls that could come: a backend that rebuilds graphs for other sizes exports under it.
            None: `shapes`.
    """

    shapes: ShapeRange
    label: str
    sizes: Mapping[str, int]
    widest: ShapeRange | None = None


@dataclass(frozen=True)
class Arguments:
    """What a module is called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Family:
    """One kind of module that is compiled. A subclass tells what differs from these defaults.

    Attributes:
        component: its name in keys.
        arguments: of the module's method, in order.
        neutral: those of them that change nothing a graph computes.
        chunk: elements of a batch that a graph takes at once, where it takes ranges; 0: all; 1: one in any graph.
    """

    component: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]]
    neutral: ClassVar[frozenset[str]] = frozenset()
    chunk: ClassVar[int] = 0

    def serves(self, module: torch.nn.Module) -> bool:
        """Whether this is one of its modules: exactly of a class that is known."""
        raise NotImplementedError

    def refusal(self, module: torch.nn.Module) -> Reason | None:
        """Why no graph serves any call of a module that is built and configured like this, or None."""
        return None

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        """The tensors that graphs of a module take, in order. Some dimensions may depend on the `tensors` of a call."""
        raise NotImplementedError

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        """The sizes in which calls like this one may differ, and the label of the graph for all of them."""
        raise NotImplementedError

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        """The tensors that a graph takes for a call of the module, which stays as it is; or why no graph serves it."""
        call = by_name(self.arguments, args, kwargs)
        inputs = {one.argument or one.name: one for one in self.inputs(module, {})}
        for name, value in call.items():
            if name not in inputs and name not in self.neutral and value is not None and value != {}:
                return Refused(self.foreign_argument(name))
        tensors = {one.name: call[argument] for argument, one in inputs.items() if call.get(argument) is not None}
        if plain([*tensors.values()]) is None:
            return Refused(reasons.NotPlainInputs())
        for one in inputs.values():
            if tensors[one.name].ndim != len(one.dims) if one.name in tensors else not one.optional:
                return Refused(reasons.UnusualInputs())
        return tensors

    def foreign_argument(self, name: str) -> Reason:
        """Why no graph serves a call with an argument that is none of its inputs."""
        return reasons.CallArgument(name)

    def run(self, module: torch.nn.Module, tensors: Tensors) -> Output:
        """The module's own method as a function of a graph's inputs: for comparisons, and to be captured."""
        raise NotImplementedError

    def capture_rewrites(self, module: torch.nn.Module, tensors: Tensors) -> contextlib.AbstractContextManager[None]:
        """What the compiling process changes while it captures `run`: what asks for sizes and makes no difference."""
        return contextlib.nullcontext()

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        """A usual call: for graphs that are restored, compiled or measured before the first call comes.

        Args:
            like: whatever the client's families read sizes, dtype and device from.
        """
        raise NotImplementedError

    def ranged(self, module: torch.nn.Module, tensors: Tensors, shapes: Shapes) -> Ranged:
        """The range that a graph for this call should have."""
        axes, label = self.axes(module, tensors)
        inputs = [one for one in self.inputs(module, tensors) if one.name in tensors]
        if len(inputs) != len(tensors):
            raise ValueError(
                f"{type(self).__name__} takes no {', '.join(tensors.keys() - {one.name for one in inputs})}"
            )
        # Where inputs disagree, the first one counts: the call is refused, in its terms.
        dims_of = ((one.dims, tensors[one.name].shape) for one in reversed(inputs))
        size_of = {dim: size for names, shape in dims_of for dim, size in zip(names, shape, strict=True)}
        sizes = {axis.name: size_of[axis.name] for axis in axes}
        sides = {axis.name: sizes[axis.name] * axis.pixels for axis in axes if axis.pixels}
        if shapes == "exact":
            dims = [Dim(axis.name, sizes[axis.name], sizes[axis.name], pixels=axis.pixels) for axis in axes]
            words = [f"{sides['width']}x{sides['height']}"] if sides else []
            label = " ".join([*words, *(axis.text.format(sizes[axis.name]) for axis in axes if axis.text)])
        else:
            dims = [Dim(axis.name, axis.low, axis.high, axis.step, axis.pixels) for axis in axes]
        specs = [
            TensorSpec(
                one.name,
                tuple(
                    size if dim is None else dim for dim, size in zip(one.dims, tensors[one.name].shape, strict=True)
                ),
                one.dtype or dtype_name(tensors[one.name].dtype),
            )
            for one in inputs
        ]
        return Ranged(ShapeRange(tuple(dims), tuple(specs)), label, sizes)


class ModuleCall(torch.nn.Module):
    """A module as a function of a graph's inputs, in the compiling process: what is captured."""

    def __init__(self, family: Family, module: torch.nn.Module, inputs: Sequence[str]) -> None:
        super().__init__()
        self.module = module
        self._family = family
        self._inputs = tuple(inputs)

    def forward(self, *tensors: torch.Tensor) -> Output:
        named = dict(zip(self._inputs, tensors, strict=True))
        with self._family.capture_rewrites(self.module, named):
            return self._family.run(self.module, named)


def modules_of(registered: Iterable[object]) -> list[str]:
    """The modules outside of this package that define some of these objects, for processes that need them, too."""
    package = __name__.removesuffix("runtime.family")
    names = {type(one).__module__ for one in registered}
    return sorted(name for name in names if not name.startswith(package))


def by_name(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


def plain(values: Sequence[Any]) -> list[torch.Tensor] | None:
    """The values as tensors; None where one of them is something else, a tensor of a library's own class for one."""
    tensors = [value for value in values if type(value) in TENSORS]
    return tensors if len(tensors) == len(values) else None
