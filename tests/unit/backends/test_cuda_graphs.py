"""When calls are captured; capturing itself needs a GPU and is tested in tests/gpu."""

from __future__ import annotations

import math

import pytest
import torch

from onegraph.backends import cuda_graphs
from onegraph.backends.cuda_graphs import CudaGraphs
from onegraph.common.replaced import replaced


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.fixture(autouse=True)
def _counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "counters", cuda_graphs.Counters())


def test_a_call_is_due_when_its_shape_came_often() -> None:
    function, x, other = CudaGraphs(double), (torch.ones(3),), (torch.ones(4),)
    function._calls[(x[0].shape,)] = cuda_graphs.policy.after - 1
    assert not function.due(x)
    function._calls[(x[0].shape,)] += 1
    assert function.due(x)
    assert not function.due(other)
    with replaced(cuda_graphs, "policy", cuda_graphs.CapturePolicy(after=0)):
        assert not function.due(x)


@pytest.mark.parametrize("why", ["forbidden", "found not worth it"])
def test_a_call_is_never_due(why: str) -> None:
    function, x = CudaGraphs(double), (torch.ones(3),)
    if why == "forbidden":
        function.forbid()
    if why == "found not worth it":
        function._refused.add((x[0].shape,))
    function._calls[(x[0].shape,)] = 100
    assert not function.due(x)


def test_on_a_cpu_every_call_is_made_and_nothing_held() -> None:
    made = []
    function = CudaGraphs(lambda x: made.append(1) or double(x))
    for value in range(3 * cuda_graphs.policy.after):
        assert function(torch.tensor([float(value)])).item() == 2 * value
    assert len(made) == 3 * cuda_graphs.policy.after
    assert cuda_graphs.counters == cuda_graphs.Counters(captures=0, replayed_calls=0)
    assert function.held_bytes == 0
    assert not function.try_out(torch.ones(1))


def test_replays_are_judged_by_their_worst_output() -> None:
    right = (torch.ones(3), torch.ones(3))
    assert cuda_graphs.distance(right, right) == 0
    assert cuda_graphs.distance((1.5 * right[0], right[1]), right) == pytest.approx(0.5)
    assert math.isnan(cuda_graphs.distance((right[0], right[1] * math.nan), right))


def test_a_call_is_captured_from_its_second_time_on() -> None:
    function, x = CudaGraphs(double), (torch.ones(3),)
    assert not function.due(x)
    function._calls[(x[0].shape,)] += 1
    assert function.due(x)


def test_while_paused_calls_count_but_none_is_captured() -> None:
    function, x = CudaGraphs(double), (torch.ones(3),)
    with function.paused():
        function._calls[(x[0].shape,)] += 3
        assert not function.due(x)
        with function.paused():
            pass
        assert not function.due(x)
    assert function.due(x)


@pytest.mark.parametrize("why", ["freed", "needed"])
def test_released_calls_are_captured_again_to_a_limit(why: str) -> None:
    function, x = CudaGraphs(double), (torch.ones(3),)
    assert function.release(why) == 0
    for time in range(1, 2 * cuda_graphs.policy.most_needed):
        function._calls[(x[0].shape,)] = cuda_graphs.policy.after
        function.held_bytes = 1000
        assert function.release(why) == 1000
        assert function.held_bytes == 0
        function._calls[(x[0].shape,)] = cuda_graphs.policy.after
        assert function.due(x) == (why == "freed" or time <= cuda_graphs.policy.most_needed)
