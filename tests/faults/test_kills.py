"""Processes that are ended by a signal: no sound graph is lost, and the next start leaves nothing of them behind."""

from __future__ import annotations

import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from headless.standstill import wait_until
from support.processes.faults import dying, moments_counted
from support.processes.lives import Case, Life, Script, copy_case, live, new_case
from support.processes.repeats import repeated

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(scope="session")
def restoring(compiled: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[float, int]:
    """How many seconds a restore and a first call take, and at how many moments they may be ended."""
    case = copy_case(compiled, tmp_path_factory.mktemp("restoring") / "user")
    seconds = live(case).restored().seconds
    counted = case.root / "moments"
    live(case, partial(moments_counted, counted)).restored()
    return seconds, int(counted.read_text())


@pytest.fixture(scope="session")
def publishing(compiled: Case, tmp_path_factory: pytest.TempPathFactory) -> int:
    """At how many moments a process may be ended that compiles, publishes, loads and calls."""
    case = new_case(tmp_path_factory.mktemp("publishing") / "user", compiled.golden)
    counted = case.root / "moments"
    assert live(case, partial(moments_counted, counted)).fine().compiles == 1
    return int(counted.read_text())


def goes_on(case: Case, *, compiles: int) -> None:
    """Assert that the next two starts are as if nothing had happened, but for so many compiles."""
    case.grow_older()
    assert live(case).fine().codes == ()
    live(case).restored()
    assert case.compiles <= compiles
    assert case.leftovers() == []


@pytest.mark.parametrize("number", repeated(1, 20))
@pytest.mark.parametrize("sign", SIGNALS)
def test_a_restore_ended_at_any_time(sign: int, number: int, case: Case, restoring: tuple[float, int]) -> None:
    chance = random.Random(f"restore {sign} {number}")
    life = Life(Script(case)).begun()
    time.sleep(chance.uniform(0.0, restoring[0]))
    life.kill(sign)
    assert life.end().exit_code in (0, -sign)
    goes_on(case, compiles=0)


@pytest.mark.parametrize("number", repeated(1, 20))
@pytest.mark.parametrize("sign", SIGNALS)
def test_a_restore_ended_between_two_changes(sign: int, number: int, case: Case, restoring: tuple[float, int]) -> None:
    moment = random.Random(f"changes {sign} {number}").randrange(restoring[1])
    assert live(case, partial(dying, moment, sign)).exit_code == -sign
    goes_on(case, compiles=0)


@pytest.mark.parametrize("number", repeated(2, 20))
@pytest.mark.parametrize("sign", SIGNALS)
def test_a_publish_ended_between_two_changes(sign: int, number: int, empty: Case, publishing: int) -> None:
    moment = random.Random(f"publish {sign} {number}").randrange(publishing)
    assert live(empty, partial(dying, moment, sign)).exit_code == -sign
    goes_on(empty, compiles=2)


@pytest.mark.full
def test_a_publish_ended_at_every_moment(compiled: Case, publishing: int, tmp_path: Path) -> None:
    for moment in range(publishing):
        case = new_case(tmp_path / str(moment), compiled.golden)
        assert live(case, partial(dying, moment, signal.SIGKILL)).exit_code == -signal.SIGKILL
        goes_on(case, compiles=2)


@pytest.mark.parametrize("number", repeated(1, 20))
@pytest.mark.parametrize(
    "sign", [signal.SIGKILL, *(pytest.param(sign, marks=pytest.mark.full) for sign in SIGNALS[1:])]
)
def test_a_compile_whose_server_is_ended(sign: int, number: int, compiled: Case, tmp_path: Path) -> None:
    """The compiling process ends with its server, and the next start removes what it had written."""
    case = new_case(tmp_path / "user")  # compiles for good
    chance = random.Random(f"compile {sign} {number}")
    life = Life(Script(case)).begun()
    time.sleep(chance.uniform(0.5, compiled.entry.manifest.compile_seconds))
    life.kill(sign)
    assert life.end().exit_code in (0, -sign)
    wait_until(lambda: not at_work(case.root))
    goes_on(Case(case.root, compiled.golden), compiles=2)


def at_work(folder: Path) -> list[str]:
    """Processes whose command line names a folder; those that wait to be reaped have none."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and str(folder).encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found
