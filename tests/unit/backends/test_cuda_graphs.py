"""When calls are recorded; the recordings themselves need a GPU and are tested in tests/gpu."""

from __future__ import annotations

import pytest
import torch

from onegraph.backends import cuda_graphs
from onegraph.backends.cuda_graphs import Replayed


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.fixture(autouse=True)
def _counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "counters", cuda_graphs.Counters())


def test_a_call_is_due_when_its_shape_came_often(monkeypatch: pytest.MonkeyPatch) -> None:
    function, x, other = Replayed(double, allowed=True), (torch.ones(3),), (torch.ones(4),)
    function._calls[(x[0].shape,)] = cuda_graphs.AFTER - 1
    assert not function.due(x)
    function._calls[(x[0].shape,)] += 1
    assert function.due(x)
    assert not function.due(other)
    monkeypatch.setattr(cuda_graphs, "AFTER", 0)
    assert not function.due(x)


@pytest.mark.parametrize("why", ["no proof", "forbidden", "found not worth it"])
def test_a_call_is_never_due(why: str) -> None:
    function, x = Replayed(double, allowed=why != "no proof"), (torch.ones(3),)
    if why == "forbidden":
        function.forbid()
    if why == "found not worth it":
        function._refused.add((x[0].shape,))
    function._calls[(x[0].shape,)] = 100
    assert not function.due(x)


def test_on_a_cpu_every_call_is_made_and_nothing_held() -> None:
    made = []
    function = Replayed(lambda x: made.append(1) or double(x), allowed=True)
    for value in range(3 * cuda_graphs.AFTER):
        assert function(torch.tensor([float(value)])).item() == 2 * value
    assert len(made) == 3 * cuda_graphs.AFTER
    assert cuda_graphs.counters == cuda_graphs.Counters(recordings=0, replayed_calls=0)
    assert function.held_bytes == 0
    assert not function.try_out(torch.ones(1))


def test_a_call_is_captured_from_the_second_of_its_shape_on() -> None:
    function, x = Replayed(double, allowed=True), (torch.ones(3),)
    assert not function.due(x)
    function._calls[(x[0].shape,)] += 1
    assert function.due(x)


def test_nothing_is_captured_while_a_graph_is_measured_but_calls_count() -> None:
    function, x = Replayed(double, allowed=True), (torch.ones(3),)
    with function.paused():
        function._calls[(x[0].shape,)] += 3
        assert not function.due(x)
        with function.paused():
            pass
        assert not function.due(x)
    assert function.due(x)


@pytest.mark.parametrize("why", ["freed", "needed"])
def test_released_calls_may_be_captured_again_unless_the_host_needs_their_memory_time_and_again(why: str) -> None:
    function, x = Replayed(double, allowed=True), (torch.ones(3),)
    assert function.release(why) == 0
    for time in range(1, 2 * cuda_graphs.MOST_NEEDED):
        function._calls[(x[0].shape,)] = cuda_graphs.AFTER
        function.held_bytes = 1000
        assert function.release(why) == 1000
        assert function.held_bytes == 0
        function._calls[(x[0].shape,)] = cuda_graphs.AFTER
        assert function.due(x) == (why == "freed" or time <= cuda_graphs.MOST_NEEDED)
