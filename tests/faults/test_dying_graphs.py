"""A graph whose library takes the process down, and containers, in each of which a process has the same id."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.processes.deployments import give_to_group
from support.processes.faults import go_on, stopping_to_load, wait_until_stopped
from support.processes.lives import Case, Life, Report, Script, containers_work, live
from support.store.entries import rewrite

from onegraph.graph_cache.integrity import record

MEMBERS = 12345  # nobody's group, so that it has others than this user
CONTAINERS = containers_work()
needs_containers = pytest.mark.skipif(not CONTAINERS, reason="this user may make no PID namespace (unshare --pid)")


@pytest.fixture(scope="session")
def deadly_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A library that ends the process that loads it."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("deadly")
    source, library = folder / "deadly.c", folder / "deadly.so"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) static void die(void) { abort(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library.read_bytes()


@pytest.fixture
def deadly(case: Case, deadly_library: bytes) -> Case:
    """The user's graph has that library, and is signed: whatever made it so, it was this user's installation."""
    entry = case.entry
    package = entry.folder / "graph.aoti"
    before = package.with_name("before")
    package.rename(before)
    with zipfile.ZipFile(before) as old, zipfile.ZipFile(package, "w", zipfile.ZIP_STORED) as new:
        for item in old.infolist():
            library = item.filename.endswith(".so")
            new.writestr(item, deadly_library if library else old.read(item))
    before.unlink()
    manifest = entry.manifest.model_copy(update={"files": {**entry.manifest.files, "graph.aoti": record(package)}})
    rewrite(case.store, entry, manifest)
    for file in case.copy.iterdir():
        shutil.copyfile(entry.folder / file.name, file)
    return case


def alone(case: Case, runs: int) -> Report:
    return live(case, runs=runs)


def contained(case: Case, runs: int) -> Report:
    return Life(Script(case, runs=runs, contained=True)).end()


def keep_all(case: Case) -> None:
    pass


def lose_the_home(case: Case) -> None:
    """So that it is taken from beside the checkpoint."""
    shutil.rmtree(case.home / "graphs")


def open_models(case: Case) -> None:
    """To a group, with mode 2775, before each start."""
    give_to_group(MEMBERS, case.models)


def open_home(case: Case) -> None:
    """All but the key, which would be refused."""
    give_to_group(MEMBERS, *(case.home / name for name in ("graphs", ".loading")))
    os.chown(case.home, -1, MEMBERS)
    case.home.chmod(0o2775)


as_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives folders to a group")


@pytest.mark.parametrize("lives", [alone, pytest.param(contained, marks=needs_containers)])
@pytest.mark.parametrize(
    "change",
    [keep_all, lose_the_home, pytest.param(open_models, marks=as_root), pytest.param(open_home, marks=as_root)],
)
def test_a_graph_that_ends_its_process(
    change: Callable[[Case], None], lives: Callable[[Case, int], Report], deadly: Case
) -> None:
    """After the second death it is quarantined, the copy beside the checkpoint too; one more compile, then quiet."""
    change(deadly)
    again = keep_all if change is lose_the_home else change
    deaths = 0
    while (report := lives(deadly, 2)).exit_code < 0:
        deaths += 1
        assert deaths <= 2
        again(deadly)
    report.fine()
    assert deaths > 0
    for _ in range(2):
        again(deadly)
        lives(deadly, 1).restored()
    assert (deadly.compiles, deadly.leftovers()) == (1, [])
    shutil.rmtree(deadly.home / "graphs")
    lives(deadly, 1).restored()  # of the copy, which is the new graph's
    assert deadly.compiles == 1


@needs_containers
def test_two_containers_at_once(case: Case, tmp_path: Path) -> None:
    """One that is loading a graph is not dead because another's process of the same id is new."""
    (tmp_path / "stopped").mkdir()
    stop = partial(stopping_to_load, tmp_path / "stopped")
    first = Life(Script(case, faults=(stop,), contained=True)).begun()
    wait_until_stopped(tmp_path / "stopped")
    for _ in range(3):
        Life(Script(case, contained=True)).end().restored()
    go_on(tmp_path / "stopped")
    first.end().restored()
    live(case).restored()
    assert (case.compiles, case.leftovers()) == (0, [])


@needs_containers
def test_a_container_that_is_killed_at_each_start(case: Case, tmp_path: Path) -> None:
    """Twice in a row while it loads would be too often; a start in between that goes well forgets the first."""
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        life = Life(Script(case, faults=(partial(stopping_to_load, folder),), contained=True)).begun()
        wait_until_stopped(folder)
        life.kill(signal.SIGKILL)
        assert life.end().exit_code == -signal.SIGKILL
        Life(Script(case, contained=True)).end().restored()
    assert case.compiles == 0
