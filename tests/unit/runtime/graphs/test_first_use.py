"""First uses: what was compared and what was not, and which times are believed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.store.entries import key, publish

from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs import first_use
from onegraph.runtime.graphs.first_use import CheckFailed, Comparison, FirstUseCheck
from onegraph.runtime.policy import ANY_SPEED, Policy

CPU = torch.device("cpu")
ONES = torch.ones(2)


class Clock:
    """Tells the times of calls from two lists: (compiled, eager) pairs, in milliseconds."""

    def __init__(self, pairs: list[tuple[float, float]]) -> None:
        self._times = iter([time for pair in pairs for time in pair])
        self.told = 0

    def __call__(self, call: Callable[[], Any], device: torch.device, times: int = 1) -> tuple[float, Any]:
        assert times == 1  # on a CPU nothing waits for launches
        self.told += 1
        return next(self._times), call()


@pytest.fixture
def checked(tmp_path: Path) -> FirstUseCheck:
    store = Store(tmp_path / "home")
    return FirstUseCheck(store, publish(store, ModelSource(None, "0123456789ab"), key()), Policy(), CPU, "")


def comparison(size: int = 4) -> Comparison:
    return Comparison((ONES,), {"height": size}, lambda inputs: ONES, lambda *inputs: ONES)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    def set_to(*pairs: tuple[float, float]) -> Clock:
        made = Clock([*pairs])
        monkeypatch.setattr(first_use, "timed", made)
        return made

    return set_to


def test_a_usual_speed_is_believed_at_once(clock: Any, checked: FirstUseCheck) -> None:
    told = clock((900, 40), (10, 30))
    checked.check(comparison())
    assert (checked.result.compiled_ms, checked.result.eager_ms) == (10, 30) and told.told == 4
    assert not checked.due(comparison().sizes)


@pytest.mark.parametrize("busy", [(500, 30), (10, 5000)])
def test_a_busy_moment_decides_nothing(clock: Any, checked: FirstUseCheck, busy: tuple[float, float]) -> None:
    """All pairs of one call were measured while something else had the processor: the graph seems slow, or 500x."""
    clock(*[busy] * 4)
    checked.check(comparison())
    assert checked.slower() is None and checked.result.speedup is None and checked.due(comparison().sizes)
    clock((11, 33), (12, 31))
    checked.check(comparison())
    assert checked.result.speedup is not None and 2 < checked.result.speedup < 4
    assert not checked.due(comparison().sizes)


def test_a_slow_graph_is_found_slow_by_several_calls(clock: Any, checked: FirstUseCheck) -> None:
    for call in range(3):
        assert checked.slower() is None and checked.due(comparison().sizes)
        told = clock(*[(30, 10)] * 4)
        checked.check(comparison())
        assert told.told == (8 if call == 0 else 4)
    assert checked.slower() is not None and checked.result.slow_processes == 1


def test_another_process_knows_which_calls_pay_to_be_replayed(tmp_path: Path) -> None:
    """Of so many shapes the last ones, and none of an environment before."""
    store = Store(tmp_path / "home")
    entry = publish(store, ModelSource(None, "0123456789ab"), key())

    def process(environment: str = "torch 2") -> FirstUseCheck:
        return FirstUseCheck(store, entry, Policy(), CPU, environment)

    first = process()
    for side in [*range(70), 10]:
        assert first.pays(f"1x{side}") is None or side == 10
        first.remember(f"1x{side}", pays=side % 2 == 0)
    again = process()
    assert [again.pays(f"1x{side}") for side in range(70)] == [None] * 6 + [side % 2 == 0 for side in range(6, 70)]
    assert [*again.result.replays][-1] == "1x10"
    assert process("torch 3").pays("1x10") is None


def test_short_calls_on_a_gpu_are_timed_in_a_row() -> None:
    gpu = torch.device("cuda", 0)
    assert [first_use.in_a_row(ms, gpu) for ms in (0.0, 3.0, 6.0, 15.0, 40.0)] == [8, 6, 3, 1, 1]
    assert first_use.in_a_row(0.1, CPU) == 1
    calls: list[int] = []
    milliseconds, last = first_use.timed(lambda: [calls.append(len(calls)), time.sleep(0.02), len(calls)][-1], CPU, 3)
    assert (calls, last) == ([0, 1, 2], 3)
    assert milliseconds >= 20


def test_times_of_other_sizes_are_not_compared(clock: Any, checked: FirstUseCheck) -> None:
    clock(*[(30, 10)] * 4)
    checked.check(comparison(4))
    clock(*[(300, 100)] * 4)
    checked.check(comparison(8))
    clock(*[(30, 10)] * 2)
    checked.check(comparison(4))
    assert checked.result.compiled_ms is None
    clock(*[(30, 10)] * 2)
    checked.check(comparison(4))
    assert (checked.result.compiled_ms, checked.result.eager_ms) == (30, 10)


def test_a_call_without_finite_values_is_no_comparison(tmp_path: Path) -> None:
    """A graph that is wrong is found by the first call that can tell, whatever came before."""
    store = Store(tmp_path / "home")
    entry = publish(store, ModelSource(None, "0123456789ab"), key())

    def check(value: float, error: float) -> tuple[Any, FirstUseCheck]:
        x = torch.full((2, 4, 8, 8), value)
        comparison = Comparison((x,), {"batch": 2}, lambda given: given[0] + error, lambda x: x)
        first = FirstUseCheck(store, entry, ANY_SPEED, torch.device("cpu"), "")
        assert first.due(comparison.sizes)
        return first.check(comparison), first

    output, first = check(math.nan, 1.0)
    assert isinstance(output, torch.Tensor) and first.result.checked == {} and first.result.compiled_ms is None
    assert store.first_use(entry).checked == {}
    assert isinstance(check(1.0, 1.0)[0], CheckFailed)
    assert check(1.0, 0.0)[1].result.checked == {"n": 0.0}
