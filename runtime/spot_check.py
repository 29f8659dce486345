"""A graph in use is compared with eager now and then: first-use checks see one moment, this sees all that comes later.

A check costs less than a step: of a batch only the first element runs eager, of a single image a quarter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..common.outputs import Output, mapped, tensors_of
from ..common.shapes import ShapeRange, following

EVERY_VARIABLE = "ONEGRAPH_CHECK_EVERY"
EVERY = 200  # calls of a graph between two checks, at least
_LONGEST_STEP = 1.0  # seconds; a longer gap between calls was spent elsewhere
_CROPPED = ("height", "width")
_BATCH = "batch"

Inputs = tuple[torch.Tensor, ...]


def every() -> int:
    """Calls between checks, from the environment; 0 turns them off."""
    try:
        return max(0, int(os.environ.get(EVERY_VARIABLE, EVERY)))
    except ValueError:
        return EVERY


@dataclass
class Schedule:
    """When the next check of one graph is due.

    Attributes:
        every: calls between two checks at least; 0: never.
        share: of the time spent in sampling that checks may take.
        cost_s: what the last check took.
    """

    every: int
    share: float = 0.004
    cost_s: float = 0.0
    _calls: int = 0
    _busy_s: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def due(self) -> bool:
        """Count a call; whether it is to be checked."""
        now = time.perf_counter()
        gap = now - self._last
        self._busy_s += gap if gap < _LONGEST_STEP else _LONGEST_STEP
        self._last = now
        self._calls += 1
        return 0 < self.every <= self._calls and self.cost_s <= self.share * self._busy_s

    def checked(self, seconds: float) -> None:
        self.cost_s, self._calls, self._busy_s, self._last = seconds, 0, 0.0, time.perf_counter()


def pair(
    shapes: ShapeRange,
    inputs: Inputs,
    output: Output,
    run: Callable[..., Output],
    eager: Callable[..., Output],
) -> tuple[Output, Output]:
    """A result of the graph and what eager makes of the same inputs, at a fraction of the call's size.

    Args:
        inputs, output: a call of the graph and what it returned.
        run: the graph.
        eager: the same module without a graph, for inputs of any size.
    """
    if not shapes.inputs:  # of a block: a small part of a step
        return output, eager(*inputs)
    batch = inputs[0].shape[0]
    if shapes.inputs[0].dims[0] == _BATCH and batch > 1 and all(t.shape[:1] == (batch,) for t in tensors_of(output)):
        batched = [spec.dims[0] == _BATCH for spec in shapes.inputs]
        first = [t[:1].contiguous() if one else t for t, one in zip(inputs, batched, strict=True)]
        return mapped(lambda tensor: tensor[:1], output), eager(*first)
    smaller = _cropped(shapes, inputs)
    if smaller is None:
        return output, eager(*inputs)
    return run(*smaller), eager(*smaller)


def _cropped(shapes: ShapeRange, inputs: Inputs) -> Inputs | None:
    """The inputs at half their height and width, where the range has that; None where it has not."""
    sizes: dict[str, int] = {}
    for spec, tensor in zip(shapes.inputs, inputs, strict=True):
        for name, size in zip(spec.dims, tensor.shape, strict=True):
            if name in _CROPPED:
                dim = shapes.dim(str(name))
                sizes[str(name)] = size // 2 // dim.multiple * dim.multiple
                if dim.refusal(sizes[str(name)]) is not None:
                    return None
    if not sizes:
        return None
    cut: list[torch.Tensor] = []
    for spec, tensor in zip(shapes.inputs, inputs, strict=True):
        for number, expression in enumerate(spec.dims):
            rule = following(str(expression))
            if rule.name in sizes:
                tensor = tensor.narrow(number, 0, rule(sizes[rule.name]))
        cut.append(tensor.clone(memory_format=torch.contiguous_format))
    return tuple(cut)
