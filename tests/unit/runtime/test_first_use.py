"""What is believed of a first use's times: noise on a busy machine decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from onegraph.graph_cache.first_use import FirstUse
from onegraph.runtime import first_use
from onegraph.runtime.first_use import FirstUseCheck, Trial
from onegraph.runtime.policy import Policy

CPU = torch.device("cpu")
ONES = torch.ones(2)


class Clock:
    """Tells the times of calls from two lists: (compiled, eager) pairs, in milliseconds."""

    def __init__(self, pairs: list[tuple[float, float]]) -> None:
        self._times = iter([time for pair in pairs for time in pair])
        self.told = 0

    def __call__(self, call: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
        self.told += 1
        return next(self._times), call()


def check() -> FirstUseCheck:
    store = Mock()
    store.first_use.return_value = FirstUse()
    return FirstUseCheck(store, Mock(), Policy(), CPU, "")


def trial(size: int = 4) -> Trial:
    return Trial((ONES,), {"height": size}, lambda inputs: ONES, lambda *inputs: ONES)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    def set_to(*pairs: tuple[float, float]) -> Clock:
        made = Clock([*pairs])
        monkeypatch.setattr(first_use, "timed", made)
        return made

    return set_to


def test_a_usual_speed_is_believed_at_once(clock: Any) -> None:
    told, checked = clock((900, 40), (10, 30)), check()
    checked.check(trial())
    assert (checked.result.compiled_ms, checked.result.eager_ms) == (10, 30) and told.told == 4
    assert not checked.due(trial())


@pytest.mark.parametrize("busy", [(500, 30), (10, 5000)])
def test_a_busy_moment_decides_nothing(clock: Any, busy: tuple[float, float]) -> None:
    """All pairs of one call were measured while something else had the processor: the graph seems slow, or 500x."""
    checked = check()
    clock(*[busy] * 4)
    checked.check(trial())
    assert checked.slower() is None and checked.result.speedup is None and checked.due(trial())
    clock((11, 33), (12, 31))
    checked.check(trial())
    assert checked.result.speedup is not None and 2 < checked.result.speedup < 4
    assert not checked.due(trial())


def test_a_slow_graph_is_found_slow_by_several_calls(clock: Any) -> None:
    checked = check()
    for call in range(3):
        assert checked.slower() is None and checked.due(trial())
        told = clock(*[(30, 10)] * 4)
        checked.check(trial())
        assert told.told == (8 if call == 0 else 4)
    assert checked.slower() is not None and checked.result.slow_processes == 1


def test_times_of_other_sizes_are_not_compared(clock: Any) -> None:
    checked = check()
    clock(*[(30, 10)] * 4)
    checked.check(trial(4))
    clock(*[(300, 100)] * 4)
    checked.check(trial(8))
    clock(*[(30, 10)] * 2)
    checked.check(trial(4))
    assert checked.result.compiled_ms is None
    clock(*[(30, 10)] * 2)
    checked.check(trial(4))
    assert (checked.result.compiled_ms, checked.result.eager_ms) == (30, 10)
