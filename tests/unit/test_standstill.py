"""Waiting that only a standstill ends."""

from __future__ import annotations

import itertools
import re
import signal
from pathlib import Path

import pytest
from headless import standstill

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes by itself, a minute with every look."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 60
        return now[0]

    monkeypatch.setattr(standstill.time, "monotonic", monotonic)
    monkeypatch.setattr(standstill.time, "sleep", lambda seconds: None)
    return now


def test_what_goes_on_may_take_any_time(clock: list[float]) -> None:
    looks, signs = itertools.count(), itertools.count()
    standstill.wait_until(lambda: next(looks) == 1000, lambda: next(signs))
    assert clock[0] > 20 * standstill.PATIENCE


def test_a_standstill_ends_the_waiting() -> None:
    with pytest.raises(TimeoutError, match="the last sign: 7"):
        standstill.wait_until(lambda: False, lambda: 7)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="pytest-timeout has no timer here")
def test_a_sign_begins_the_tests_limit_anew() -> None:
    before = signal.setitimer(signal.ITIMER_REAL, 600)
    try:
        looks, signs = iter([False, True]), itertools.count()
        standstill.wait_until(lambda: next(looks), lambda: next(signs))
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 600
        signal.setitimer(signal.ITIMER_REAL, 0)
        standstill.moved()
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0  # no test has a limit
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_the_limit_is_the_one_of_all_tests(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) == standstill.LIMIT > standstill.PATIENCE
    marked = [path for path in (ROOT / "tests").rglob("*.py") if re.search(r"mark\.timeout\(", path.read_text())]
    assert marked == []
