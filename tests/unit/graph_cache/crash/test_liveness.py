"""A lock tells whether a process of another container lives, whose PID nobody here sees."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onegraph.graph_cache import layout
from onegraph.graph_cache.crash import leftovers, liveness
from onegraph.graph_cache.crash.liveness import owning, read_owner, state, this_process
from onegraph.graph_cache.crash.markers import Markers
from onegraph.graph_cache.store import Store

# Loads an entry while it stages another, until it is killed: `HOME ENTRY NAME`.
PROCESS = """
import socket, sys
if sys.argv[3]:
    socket.sethostname(sys.argv[3])
from pathlib import Path
from onegraph.graph_cache.crash.markers import Markers
from onegraph.graph_cache.store import Store
home = Path(sys.argv[1])
with Store(home).staging(), Markers(home).loading(Path(sys.argv[2])):
    print("ready", flush=True)
    sys.stdin.read()
"""
CONTAINER = ("unshare", "--map-root-user", "--pid", "--uts", "--mount-proc", "--fork", "--kill-child")


@functools.cache
def containers_work() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def process(home: Path, entry: Path, *, container: bool, name: str = "") -> Iterator[None]:
    """A process that loads an entry, killed at the end."""
    if container and not containers_work():
        pytest.skip("unshare may not make a PID namespace here")
    command = [*(CONTAINER if container else ()), sys.executable, "-c", PROCESS, str(home), str(entry), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        yield
        started.kill()
        started.stdout.read()  # ends when nobody writes there any more


@pytest.mark.parametrize(("container", "name"), [(False, ""), (True, ""), (True, "made-anew")])
def test_a_killed_process_is_noticed_at_once(container: bool, name: str, tmp_path: Path) -> None:
    home, entry = tmp_path / "home", tmp_path / "entry"
    markers, store = Markers(home), Store(home)
    for deaths in range(2):
        with process(home, entry, container=container, name=name):
            store.sweep()
            assert len([*home.rglob(leftovers.OWNER_FILE)]) == 1
            assert not markers.note_death(entry)
        store.sweep()
        assert not [*home.rglob(leftovers.OWNER_FILE)]
        assert markers.died_while_loading(entry) == bool(deaths)
        assert markers.note_death(entry)
    markers.clear_loading(entry)
    assert not markers.died_while_loading(entry)


def elsewhere(**changes: str) -> liveness.Owner:
    """This process, as one of another container wrote it."""
    return dataclasses.replace(this_process(), **{"namespace": "pid:[1]", **changes}, locked=True)


def test_an_open_lock_is_a_live_owner(tmp_path: Path) -> None:
    path = tmp_path / "owner"
    with owning(path):
        assert read_owner(path) == this_process()
        assert state(elsewhere(), path) == "alive"
        assert state(elsewhere(machine="another"), path) == "alive"
    assert path.exists()
    assert state(elsewhere(), path) == "dead"
    assert state(elsewhere(boot="another"), path) == "unknown"  # of another machine of this name
    os.utime(path, (1e9, 1e9))
    assert state(elsewhere(boot="another"), path) == "dead"  # it ran before the machine's last start
    assert state(elsewhere(machine="another", boot="another"), path) == "unknown"
    assert state(dataclasses.replace(elsewhere(), locked=False), path) == "unknown"
    assert state(elsewhere(), tmp_path / "gone") == "unknown"


def test_another_machine_of_this_name_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clones of one image share a drive. What tells them apart is when each was started."""
    path, theirs = tmp_path / "owner", dataclasses.replace(this_process(), boot="theirs", started="1")
    path.write_text(theirs.to_text())
    assert state(theirs, path) == "unknown"
    os.utime(path, (1e9, 1e9))
    assert state(theirs, path) == "dead"
    with path.open() as held:
        pytest.importorskip("fcntl").flock(held, 2)  # as a process there holds its file, on a drive with locks
        assert state(theirs, path) == "alive"
    monkeypatch.setattr(liveness, "_PROC", tmp_path)
    assert state(theirs, path) == "unknown"


def test_machines_of_one_name_have_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = set()
    for number in ("a", "b", None):
        (tmp_path / "machine-id").write_text(number or "")
        monkeypatch.setattr(layout, "_MACHINE_ID", tmp_path / ("machine-id" if number else "missing"))
        layout.machine_id.cache_clear()
        ids.add(layout.machine_id())
    layout.machine_id.cache_clear()
    assert len(ids) == 3


def test_without_locks_the_process_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def fails(*args: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fails)
    path = tmp_path / "owner"
    with owning(path):
        owner = read_owner(path)
        assert owner is not None and not owner.locked
        assert state(owner, path) == "alive"
        assert state(elsewhere(), path) == "unknown"


def test_an_owner_takes_no_file_over(tmp_path: Path) -> None:
    (tmp_path / "owner").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError), owning(tmp_path / "owner"):
        pass
    assert not os.path.lexists(tmp_path / "elsewhere")


def test_temporary_folders_of_the_dead_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "onegraph-theirs").mkdir()  # no owner: another program's
    with leftovers.owned_folder(None) as own:
        dead = tmp_path / "onegraph-dead"
        dead.mkdir()
        (dead / leftovers.OWNER_FILE).write_text(dataclasses.replace(this_process(), started="1").to_text())
        (tmp_path / "onegraph-link").symlink_to(dead)
        leftovers.sweep(tmp_path / "home", tmp_path / "home" / "graphs")
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            ["onegraph-link", "onegraph-theirs", own.name]
        )
    assert not own.exists()
