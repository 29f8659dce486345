"""Several processes on one store: they publish one key or many, and one's store is deleted by another."""

from __future__ import annotations

import errno
import random
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.processes.churn import KEYS, Churn, content, sources, wrong
from support.processes.churn import key as key_of
from support.processes.faults import clock, dying, meeting
from support.processes.lives import Case, Life, Script, live
from support.processes.repeats import repeated
from support.store.entries import publish

_DELETIONS = 100


@pytest.mark.parametrize("number", [2, 8])
def test_processes_publish_one_key(number: int, empty: Case) -> None:
    met = partial(meeting, empty.root / "met", number)
    for life in [Life(Script(empty, faults=(met,))) for _ in range(number)]:
        report = life.end().fine()
        assert (report.compiles, report.codes) == (1, ())
    shutil.rmtree(empty.root / "met")
    live(empty).restored()
    assert empty.entry.folder.exists()  # there is one
    assert empty.compiles == number  # nobody waited for another
    assert empty.leftovers() == []


@pytest.mark.parametrize("harm", [False, True], ids=["sound", "harmed"])
@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.full)])
def test_processes_at_thirty_keys(seconds: float, harm: bool, empty: Case) -> None:
    """No process fails or loads another key's graph, and without harm none misses what was published before."""
    chance = random.Random(seconds)
    churns = [Churn(empty, seed, seconds, harm=harm) for seed in range(4)]
    until, killed = time.monotonic() + seconds - 1, 0
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.1, 2.0))
        victim = chance.randrange(len(churns))
        churns[victim].kill(chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP]))
        killed += 1
        churns[victim] = Churn(empty, 100 + killed, max(0.1, until + 1 - time.monotonic()), harm=harm)
    for churn in churns:
        troubles, done = churn.end()
        assert troubles == []
        assert sum(done.values()) > 0
    empty.grow_older()
    for source in sources(empty):
        empty.store.sweep()
        empty.store.sweep_beside(source)
        for number in range(KEYS):
            wrong(empty, number, source, known=False)  # clears what is broken
            publish(empty.store, source, key_of(number), content(number))
            assert wrong(empty, number, source, known=True) == ""
    left = empty.leftovers()
    if harm:  # of an entry that was harmed and lies elsewhere since, one death may stay on record: it condemns nothing
        folders = {Path(path).parent for path in left if path.startswith("home/.loading/")}
        assert len(folders) == len(left), left
    else:
        assert left == []


def test_a_store_deleted_while_in_use(case: Case) -> None:
    """What is loaded goes on; a later process compiles."""
    delete = partial(shutil.rmtree, case.entry.folder.parents[2], ignore_errors=True)
    report = Life(Script(case, runs=3, between=delete)).end().fine()
    assert (report.restores, report.compiled_calls, report.codes) == (1, 3, ())
    assert live(case).fine().compiles == 1
    live(case).restored()
    assert case.leftovers() == []


def _delete(store: Path) -> None:
    """As a user who deletes again what a process put there meanwhile: it may already compile what it did not find."""

    def unless_gone(function: Any, path: str, error: Any) -> None:
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    for _ in range(_DELETIONS):
        try:
            shutil.rmtree(store, onerror=unless_gone)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
    raise AssertionError(f"{store} was filled again {_DELETIONS} times while it was deleted")


@pytest.mark.parametrize("number", repeated(2, 20))
def test_a_store_deleted_while_it_is_restored(number: int, case: Case) -> None:
    life = Life(Script(case)).begun()
    time.sleep(random.Random(number).uniform(0.0, 0.3))
    _delete(case.entry.folder.parents[2])
    life.end().fine()
    live(case, runs=2).fine()
    live(case).restored()
    assert case.compiles <= 1
    assert case.leftovers() == []


@pytest.mark.parametrize("years", [-30, 30])
def test_a_clock_that_is_wrong(years: int, case: Case) -> None:
    """Restoring does not ask for the time, and what a process of another time left behind goes."""
    wrong_clock = partial(clock, years * 365 * 86400.0)
    live(case, wrong_clock).restored()
    assert live(case, partial(dying, 40, signal.SIGKILL)).exit_code == -signal.SIGKILL
    case.grow_older(years * 365 * 86400.0)
    live(case).restored()
    assert case.leftovers() == []


@pytest.mark.parametrize("years", [-30, 30])
def test_a_compile_while_the_clock_is_wrong(years: int, empty: Case) -> None:
    assert live(empty, partial(clock, years * 365 * 86400.0)).fine().compiles == 1
    live(empty).restored()
    assert (empty.compiles, empty.leftovers()) == (1, [])
