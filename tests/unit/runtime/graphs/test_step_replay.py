"""A step of blocks that is captured: its replays give what launches give, and only where nothing has changed.

There is no GPU here: in place of a CUDA graph a function computes the step again from what the capture has read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from onegraph.backends import cuda_graphs
from onegraph.common import reasons
from onegraph.runtime.graphs import step_replay
from onegraph.runtime.graphs.binding import Held
from onegraph.runtime.graphs.step_replay import StepReplay

BLOCKS = 3
_ALIKE = 3  # steps, of which the last one is captured


class Block:
    """A graph that adds its weight and what all blocks are given, and has a tensor of its own."""

    def __init__(self, number: int, width: int) -> None:
        self.retired: Any = None
        self.captures = SimpleNamespace(possible=True, marked=contextlib.nullcontext)
        self.launches = 0
        self.factor = 1.0
        self.weight = torch.full((width,), float(number + 1))
        self.own = torch.full((width,), 0.5)
        storage = self.weight.untyped_storage()
        self.bound: Any = SimpleNamespace(binding=self.binding(storage))

    @staticmethod
    def binding(storage: torch.UntypedStorage) -> Any:
        start = storage.data_ptr()
        return SimpleNamespace(memory=lambda: [storage], is_in=lambda kept: kept[0].data_ptr() == start)

    def computed(self, x: torch.Tensor, common: torch.Tensor, own: torch.Tensor) -> Any:
        return self.factor * (x + self.weight + common), own * x

    def launched(self, bound: Any, inputs: Any) -> Any:
        return self.computed(*inputs)

    def called(self, step: StepReplay, held: Held, x: torch.Tensor, common: torch.Tensor) -> Any:
        inputs = x, common, self.own

        def launch() -> Any:
            self.launches += 1
            return self.computed(*inputs)

        return step.call(self, self.bound, held, inputs, launch)


class Model:
    """Blocks that are called one after the other."""

    def __init__(self, width: int = 8) -> None:
        self.blocks = [Block(number, width) for number in range(BLOCKS)]
        self.step, self.held, self.width = StepReplay(), Held(), width

    def launches(self) -> int:
        return sum(block.launches for block in self.blocks)

    def run(self, value: float, between: Callable[[int, torch.Tensor], torch.Tensor] = lambda number, x: x) -> Any:
        """A step, which gives what is right; the results of all blocks."""
        x, common = torch.full((self.width,), value), torch.full((self.width,), 2 * value)
        results = []
        self.step.begin()
        for number, block in enumerate(self.blocks):
            x = between(number, x)
            expected = block.computed(x, common, block.own)
            results.append(block.called(self.step, self.held, x, common))
            assert all(map(torch.equal, results[-1], expected))
            x = results[-1][0]
        self.step.end()
        return results


@pytest.fixture(autouse=True)
def computing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def captured(function: Callable[[], torch.Tensor], device: torch.device) -> Any:
        found = function()
        return SimpleNamespace(replay=lambda: found.copy_(function())), found

    monkeypatch.setattr(cuda_graphs, "captured", captured)


@pytest.fixture
def model() -> Model:
    """One whose steps are replayed."""
    made = Model()
    for value in range(_ALIKE):
        made.run(float(value))
    assert made.launches() == _ALIKE * BLOCKS
    made.run(7.0)
    assert (made.launches(), made.step.replays) == (_ALIKE * BLOCKS, 1)
    return made


def launched(model: Model, value: float = 9.0, **how: Any) -> int:
    """How many blocks of one more step were launched."""
    before = model.launches()
    model.run(value, **how)
    return model.launches() - before


def test_what_a_step_has_returned_stays(model: Model) -> None:
    first = model.run(3.0)
    kept = [[one.clone() for one in result] for result in first]
    assert launched(model, 4.0) == 0
    assert all(
        torch.equal(a, b) for one, other in zip(first, kept, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_weights_that_were_written_to_are_read(model: Model) -> None:
    model.blocks[1].weight.mul_(-3)
    assert launched(model) == 0


def test_from_a_call_with_something_else_on_all_are_launched(model: Model) -> None:
    assert launched(model, between=lambda number, x: x + 1 if number == 1 else x) == 2
    assert launched(model) == 0
    model.blocks[2].own = torch.full((8,), 0.25)
    assert launched(model) == 1


def test_a_call_that_is_left_out(model: Model) -> None:
    taken = model.blocks.pop(1)
    assert launched(model) == 1  # the first is replayed, the last has another place
    model.blocks.insert(1, taken)
    assert launched(model) == 0


def test_what_changes_for_good_is_captured_anew(model: Model) -> None:
    model.blocks[2].own = torch.full((8,), 0.25)
    assert [launched(model) for _ in range(step_replay._MISSED)] == [1] * step_replay._MISSED
    assert [launched(model) for _ in range(_ALIKE + 1)] == [BLOCKS] * _ALIKE + [0]


def test_memory_that_is_gone_is_not_read(model: Model) -> None:
    block = model.blocks[1]
    model.held.release()
    block.bound.binding.memory = lambda: None
    assert launched(model) == BLOCKS


def test_memory_that_was_resized_is_not_read(model: Model) -> None:
    block = model.blocks[1]
    block.bound.binding.is_in = lambda kept: False
    assert launched(model) == BLOCKS


def test_weights_that_were_bound_anew(model: Model) -> None:
    block = model.blocks[1]
    block.weight = block.weight * 2
    block.bound.binding = block.binding(block.weight.untyped_storage())
    assert [launched(model) for _ in range(_ALIKE + 1)] == [BLOCKS] * _ALIKE + [0]


def test_a_graph_that_is_no_more(model: Model) -> None:
    model.blocks[2].retired = reasons.GraphClosed()
    assert launched(model) == BLOCKS


def test_inputs_of_another_shape(model: Model) -> None:
    wide = Model(16)
    wide.step = model.step
    assert launched(wide) == BLOCKS


def test_results_that_are_large_are_not_kept() -> None:
    model = Model(step_replay._LARGEST // 4)
    assert [launched(model) for _ in range(_ALIKE + 1)] == [BLOCKS] * (_ALIKE + 1)
    assert not model.step._before and not model.step._calls


def test_graphs_whose_calls_may_not_be_captured() -> None:
    model = Model()
    model.blocks[1].captures.possible = False
    assert [launched(model) for _ in range(_ALIKE + 1)] == [BLOCKS] * (_ALIKE + 1)


def test_nobody_tells_of_the_calls_of_a_step_that_is_neither_replayed_nor_noted(model: Model) -> None:
    steps = model.step, StepReplay()
    for step in steps:
        step.begin()
    assert not any(step.idle for step in steps)
    for step in steps:
        step.begin(allowed=False)
    assert all(step.idle for step in steps)
    model.step._left = 0
    model.step.begin()
    assert not model.step.idle  # it is replayed, though no further one will be captured
    large = Model(step_replay._LARGEST // 4)
    large.run(1.0)
    large.step.begin()
    assert large.step.idle


def test_a_replay_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def captured(function: Callable[[], torch.Tensor], device: torch.device) -> Any:
        return SimpleNamespace(replay=lambda: None), function() + 1

    monkeypatch.setattr(cuda_graphs, "captured", captured)
    model = Model()
    assert [launched(model) for _ in range(_ALIKE + 3)] == [BLOCKS] * (_ALIKE + 3)


def test_a_capture_that_fails_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def captured(function: Callable[[], torch.Tensor], device: torch.device) -> Any:
        tried.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "captured", captured)
    model = Model()
    assert [launched(model) for _ in range(2 * _ALIKE)] == [BLOCKS] * 2 * _ALIKE
    assert len(tried) == 1


def test_an_input_of_unknown_origin_is_not_captured() -> None:
    """One that only a later block is given, and another one at each step: a replay would not have it in time."""
    model = Model()

    def between(number: int, x: torch.Tensor) -> torch.Tensor:
        if number == 2:
            model.blocks[2].own = torch.full((8,), 0.25)
        return x

    assert [launched(model, between=between) for _ in range(_ALIKE + 2)] == [BLOCKS] * (_ALIKE + 2)


def test_a_result_that_is_written_to_is_computed_with(model: Model) -> None:
    """In the midst of a step, in place: the tensor is the same object then. ComfyUI computes in inference mode."""

    def between(number: int, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) if number == 2 else x

    with torch.inference_mode():
        assert launched(model, between=between) == 1
        assert launched(model) == 0


def test_where_something_unknown_happens_between_calls_nothing_is_replayed(model: Model) -> None:
    begin = model.step.begin
    model.step.begin = lambda: begin(allowed=False)  # type: ignore[method-assign]
    assert launched(model) == BLOCKS
    model.step.begin = begin  # type: ignore[method-assign]
    assert launched(model) == 0
