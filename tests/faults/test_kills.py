"""Processes that are ended by a signal: no sound graph is lost, and the next start leaves nothing of them behind."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from headless.standstill import wait_until
from support.processes.faults import dying, moments_counted
from support.processes.lives import Case, Life, Script, copy_case, live, new_case
from support.processes.repeats import repeated

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP]


Made = Callable[[Case, Path], Case]


def restores(compiled: Case, root: Path) -> Case:
    return copy_case(compiled, root)


def takes(compiled: Case, root: Path) -> Case:
    """The graph is beside the checkpoint alone."""
    case = copy_case(compiled, root)
    shutil.rmtree(case.home / "graphs")
    return case


def publishes(compiled: Case, root: Path) -> Case:
    """It compiles, which costs nothing, and writes a copy beside the checkpoint."""
    return new_case(root, compiled.golden)


COMPILES = {restores: 0, takes: 0, publishes: 2}  # at most, with the one that is ended


@pytest.fixture(scope="session")
def moments(compiled: Case, tmp_path_factory: pytest.TempPathFactory) -> dict[Made, tuple[float, int]]:
    """How many seconds each of them takes, and at how many moments it may be ended."""
    found = {}
    for made in COMPILES:
        root = tmp_path_factory.mktemp(made.__name__)
        report = live(made(compiled, root / "user"), partial(moments_counted, root / "moments")).fine()
        found[made] = report.seconds, int((root / "moments").read_text())
    return found


def goes_on(case: Case, *, compiles: int) -> None:
    """Assert that the next two starts are as if nothing had happened, but for so many compiles."""
    case.grow_older()
    assert live(case).fine().codes == ()
    live(case).restored()
    assert case.compiles <= compiles
    assert case.leftovers() == []


@pytest.mark.parametrize("number", repeated(1, 20))
@pytest.mark.parametrize("sign", SIGNALS)
@pytest.mark.parametrize("made", [restores, takes])
def test_one_ended_at_any_time(
    made: Made, sign: int, number: int, compiled: Case, moments: dict[Made, tuple[float, int]], tmp_path: Path
) -> None:
    case, chance = made(compiled, tmp_path / "user"), random.Random(f"{made.__name__} {sign} {number}")
    life = Life(Script(case)).begun()
    time.sleep(chance.uniform(0.0, moments[made][0]))
    life.kill(sign)
    assert life.end().exit_code in (0, -sign)
    goes_on(case, compiles=0)


@pytest.mark.parametrize("number", repeated(2, 20))
@pytest.mark.parametrize("sign", SIGNALS)
@pytest.mark.parametrize("made", COMPILES)
def test_one_ended_between_two_changes(
    made: Made, sign: int, number: int, compiled: Case, moments: dict[Made, tuple[float, int]], tmp_path: Path
) -> None:
    moment = random.Random(f"changes {made.__name__} {sign} {number}").randrange(moments[made][1])
    dies_at(moment, sign, made, compiled, tmp_path / "user")


@pytest.mark.full
@pytest.mark.parametrize("made", COMPILES)
def test_one_ended_at_every_moment(
    made: Made, compiled: Case, moments: dict[Made, tuple[float, int]], tmp_path: Path
) -> None:
    for moment in range(moments[made][1]):
        dies_at(moment, signal.SIGKILL, made, compiled, tmp_path / str(moment))


def dies_at(moment: int, sign: int, made: Made, compiled: Case, root: Path) -> None:
    case = made(compiled, root)
    assert live(case, partial(dying, moment, sign)).exit_code == -sign
    goes_on(case, compiles=COMPILES[made])


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
