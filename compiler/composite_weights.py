"""Weights that consist of several plain tensors, such as quantised values and their scales.

A graph reads the plain tensors, each a constant of its own that is named by its attribute path: the module's, the
weight's name, and the path below the weight, e.g. `attention.qkv.weight._params.scale`. A weight of another class that
has memory of its own, such as packed bytes, is one part, `MEMORY`. What else there is to know of a weight is a fact of
the architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
MEMORY = "_memory"  # in the place of an attribute: the weight's own memory as a plain tensor


@dataclass(frozen=True)
class WeightParts:
    """A composite weight, taken apart.

    Attributes:
        tensors: the plain tensors by their attribute paths below the weight.
        facts: all else that compiled code depends on, hashable and with a stable text.
    """

    tensors: Mapping[str, torch.Tensor]
    facts: tuple[Any, ...]

    def metadata(self) -> tuple[Any, ...]:
        """Everything about the weight but its values."""
        shaped = ((path, as_read(tensor)) for path, tensor in self.tensors.items())
        return (*self.facts, *((path, t.dtype, tuple(t.shape), t.stride()) for path, t in shaped))


def as_read(part: torch.Tensor) -> torch.Tensor:
    """A part as graphs read it: of a single value it does not matter in how many dimensions it is given."""
    return part.detach().reshape(()) if part.numel() == 1 else part.detach()


def _none(weight: torch.Tensor) -> WeightParts | None:
    return None


Made = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]  # what is called, and with what


def _made_by_nobody(weight: torch.Tensor) -> Made | None:
    return None


def _itself(value: Any) -> None:
    return None


@dataclass(frozen=True)
class Composites:
    """What a client knows of composite weights; by default nothing, so that none is served.

    Attributes:
        parts: takes a weight apart; None where the client does not know it.
        made: what makes such a weight again when it is called, and its arguments; None where it does not know it.
        exact: gives a copy of a module in float32 whose weights are plain, which quantises nothing.
        classes: classes inside of functions, as `module:name`, that the client makes again in the compiling process.
        stand_in: what a model in the compiling process has in place of an object of the client's that cannot be there,
            such as who samples; None: the object itself. It refers to no class of the pack, whose name differs there.
    """

    parts: Callable[[torch.Tensor], WeightParts | None] = _none
    made: Callable[[torch.Tensor], Made | None] = _made_by_nobody
    exact: Callable[[torch.nn.Module], torch.nn.Module] | None = None
    classes: frozenset[str] = frozenset()
    stand_in: Callable[[Any], Any] = _itself


NONE = Composites()


def class_name(cls: type) -> str:
    """Return `module:name` of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"
