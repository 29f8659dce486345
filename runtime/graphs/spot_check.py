"""A graph in use is compared with eager now and then: first-use checks see one moment, this sees all that comes later.

A check costs less than a step: of a batch only the first element runs eager, of a single image a quarter.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ...common import reasons
from ...common.outputs import Output, mapped, tensors_of
from ...signature.declared import ShapeRange
from . import faithfulness
from .first_use import CheckFailed, Comparison, FirstUseCheck, QuantisingEager, fetched, parked, timed

EVERY_VARIABLE = "ONEGRAPH_CHECK_EVERY"
EVERY = 200  # calls of a graph between two checks, at least
_LONGEST_STEP = 1.0  # seconds; a longer gap between calls was spent elsewhere
_CROPPED = ("height", "width")
_BATCH = "batch"

Inputs = tuple[torch.Tensor, ...]
Comparing = Callable[[], contextlib.AbstractContextManager[object]]


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
        cost_s: what the last check took, with the call: results are copied and compared, too, which takes longest for
            blocks of a video.
    """

    every: int
    share: float = 0.004
    cost_s: float = 0.0
    _calls: int = 0
    _put_off: int = 0
    _busy_s: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def due(self, costly: bool = False) -> bool:
        """Count a call; whether it is to be checked.

        Args:
            costly: a check of it would take more memory than eager: another call is checked if one comes soon.
        """
        now = time.perf_counter()
        gap = now - self._last
        self._busy_s += gap if gap < _LONGEST_STEP else _LONGEST_STEP
        self._last = now
        self._calls += 1
        due = 0 < self.every <= self._calls and self.cost_s <= self.share * self._busy_s
        if due and costly and self._put_off < self.every:
            self._put_off += 1
            return False
        return due

    def checked(self, seconds: float) -> None:
        self.cost_s, self._calls, self._busy_s, self._last = seconds, 0, 0.0, time.perf_counter()
        self._put_off = 0


class SpotChecks:
    """The checks of one graph's calls, the first ones and some later ones.

    Args:
        shapes: of the graph.
        first_use: what its first use showed.
        share: see `Schedule`.
    """

    def __init__(self, shapes: ShapeRange, device: torch.device, first_use: FirstUseCheck, share: float) -> None:
        self._shapes = shapes
        self._device = device
        self._first_use = first_use
        self._schedule = Schedule(every(), share)
        self.due = self._schedule.due  # `costly`: `copied` of a `CallContext`

    def first(
        self, comparison: Comparison, runner: Callable[..., Output], comparing: Comparing, apart: bool
    ) -> tuple[Output, CheckFailed | None]:
        """One of the first calls, which is compared with eager in full; see `later`."""
        with comparing():
            checked = self._first_use.check(comparison)
        if isinstance(checked, CheckFailed):
            return checked.reference, checked
        if not apart:
            return checked, None
        del checked  # another run's, beside which this one would take more than eager
        return comparison.run(comparison.inputs), None

    def later(
        self, comparison: Comparison, runner: Callable[..., Output], comparing: Comparing, apart: bool
    ) -> tuple[Output, CheckFailed | None]:
        """A later call, compared with eager where there is memory for it: a block in full, anything else in part.

        Eager computes a block before its graph does: after it, all that eager needs would lie beside what the graph
        returned, which is more memory than eager takes without a graph.

        Args:
            runner: the graph, for inputs of any size that it serves.
            comparing: in what a graph is compared.
            apart: whether what is compared is another run than the call: of a graph that calls functions of others.

        Returns:
            What the graph made of the call; why it is wrong, with eager's result.
        """
        began = timed(time.perf_counter, self._device)[1]  # when the device is done with what came before
        ahead = None
        if not self._shapes.inputs and not apart:
            with comparing(), contextlib.suppress(torch.OutOfMemoryError), comparison.restoring():
                ahead = parked(comparison.eager(*comparison.inputs))
        output = comparison.run(comparison.inputs)
        if not apart:
            with comparing():
                return output, self._failure(comparison, runner, output, ahead, began)
        output = parked(output)
        with comparing():
            failure = self._failure(comparison, runner, parked(comparison.run(comparison.inputs)), None, began)
        return fetched(output, self._device), failure

    def _failure(
        self,
        comparison: Comparison,
        runner: Callable[..., Output],
        output: Output,
        ahead: Output | None,
        began: float,
    ) -> CheckFailed | None:
        """Why a result of the graph is wrong. `ahead`: eager's for all of the inputs. `began`: when the check did."""
        try:
            if ahead is not None:
                result, reference = output, ahead
            else:
                with comparison.restoring():
                    result, reference = pair(self._shapes, comparison.inputs, output, runner, comparison.eager)
                    reference = parked(reference)
        except torch.OutOfMemoryError:  # a check must not cost the run its graph
            self._schedule.checked(0.0)
            return None
        try:
            verdict = faithfulness.compare(result, reference)
            if isinstance(comparison.eager, QuantisingEager) and not self._first_use.is_usual(verdict):
                verdict = comparison.verdict(result, reference)  # of a block, which is compared as a whole
                if isinstance(verdict, faithfulness.Faithful):
                    self._first_use.note_usual(comparison.group, verdict)
        finally:  # what ends a comparison must not have each later call begin another
            self._schedule.checked(time.perf_counter() - began)
        if isinstance(verdict, faithfulness.Unfaithful):
            return CheckFailed(reasons.SpotCheckFailed(verdict.reason), comparison.reference())
        return None


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
    smaller = cropped(shapes, inputs)
    if smaller is None:
        return output, eager(*inputs)
    return run(*smaller), eager(*smaller)


def cropped(shapes: ShapeRange, inputs: Inputs) -> Inputs | None:
    """The inputs at half their height and width, where the range has that; None where it has not."""
    sizes = shapes.sizes(inputs)
    sides = [dim for dim in shapes.dims if dim.name in _CROPPED]
    for dim in sides:
        sizes[dim.name] = sizes[dim.name] // 2 // dim.multiple * dim.multiple
    if not sides or any(dim.refusal(sizes[dim.name]) is not None for dim in sides):
        return None
    cut: list[torch.Tensor] = []
    for tensor, shape in zip(inputs, shapes.shapes(sizes), strict=True):
        for number, size in enumerate(shape):
            tensor = tensor.narrow(number, 0, size)
        cut.append(tensor.clone(memory_format=torch.contiguous_format))
    return tuple(cut)
