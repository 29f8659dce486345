"""When calls are recorded; the recordings themselves need a GPU and are tested in tests/gpu."""

from __future__ import annotations

import pytest
import torch

from onegraph.compiler import replay
from onegraph.compiler.replay import Replayed


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.fixture(autouse=True)
def _counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "counters", replay.Counters())


def test_a_call_is_due_when_its_shape_came_often(monkeypatch: pytest.MonkeyPatch) -> None:
    function, x, other = Replayed(double, allowed=True), (torch.ones(3),), (torch.ones(4),)
    function._calls[(x[0].shape,)] = replay.AFTER - 1
    assert not function.due(x)
    function._calls[(x[0].shape,)] += 1
    assert function.due(x)
    assert not function.due(other)
    monkeypatch.setattr(replay, "AFTER", 0)
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
    for value in range(3 * replay.AFTER):
        assert function(torch.tensor([float(value)])).item() == 2 * value
    assert len(made) == 3 * replay.AFTER
    assert replay.counters == replay.Counters(recordings=0, replayed_calls=0)
    assert function.held_bytes == 0
    assert not function.try_out(torch.ones(1))
