"""What a family of modules tells about its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from ...common.outputs import Output
from ...common.reasons import Reason
from ...common.shapes import Refused, ShapeRange

Shapes = Literal["any size", "exact"]
Inputs = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Ranged:
    """A shape range with its label, and the sizes of the call at hand by dimension name."""

    shapes: ShapeRange
    label: str
    sizes: Mapping[str, int]


class Family(Protocol):
    """One kind of module that can be compiled.

    Attributes:
        component: its name in keys.
        method: of the module, that calls are taken by.
        chunk: elements of a batch that a graph takes at once.
        each_call_is_a_run: whether a call stands for itself, as a decode does, or is one step of many.
        checks_finite: whether results that are not finite must not leave.
    """

    @property
    def component(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def chunk(self) -> int: ...
    @property
    def each_call_is_a_run(self) -> bool: ...
    @property
    def checks_finite(self) -> bool: ...

    def serves(self, module: torch.nn.Module) -> bool:
        """Whether this is one of its modules: exactly of a class that is known."""

    def unit(self, module: torch.nn.Module) -> int:
        """Pixels of an image per unit of the inputs' height and width."""

    def config_refusal(self, module: torch.nn.Module) -> Reason | None:
        """Why no graph serves any call of a module that is configured like this, or None."""

    def inputs(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | Refused:
        """The tensors that a graph takes for a call, in order; or why no graph does."""

    def ranged(self, module: torch.nn.Module, inputs: Inputs, shapes: Shapes) -> Ranged:
        """The range that a graph for this call should have."""

    def eager(self, module: torch.nn.Module, *inputs: torch.Tensor) -> Output:
        """The same function of the inputs without a graph."""

    def output(self, output: Output, kwargs: Mapping[str, Any]) -> Any:
        """A graph's output as the module returns it."""

    def only_restores(self) -> bool:
        """Whether the call under way, which called this from the method, must not compile, like a tile of an image."""
