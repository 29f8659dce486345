"""A lock tells whether a process lives, wherever it runs; where this machine would see no lock, nobody knows."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from onegraph.graph_cache import files, layout
from onegraph.graph_cache.crash import leftovers, liveness
from onegraph.graph_cache.crash.liveness import Owner, owning, read_owner, state
from onegraph.graph_cache.crash.markers import Markers
from onegraph.graph_cache.store import Store

fcntl = pytest.importorskip("fcntl")

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
BEFORE = 1e9  # a time before this machine was started


@pytest.mark.parametrize("container", ["", "container", "renamed container"])
def test_a_killed_process_is_noticed_at_once(container: str, tmp_path: Path) -> None:
    if container and (shutil.which("unshare") is None or subprocess.call([*CONTAINER, "true"])):
        pytest.skip("unshare may not make a PID namespace here")
    home, entry = tmp_path / "home", tmp_path / "entry"
    markers, store = Markers(home), Store(home)
    name = "made-anew" if container == "renamed container" else ""
    command = [*(CONTAINER if container else ()), sys.executable, "-c", PROCESS, str(home), str(entry), name]
    for deaths in (0, 1):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            store.sweep()
            assert len([*home.rglob(leftovers.OWNER_FILE)]) == 1
            assert not markers.note_death(entry)
            process.kill()
            process.stdout.read()  # ends when nobody writes there any more
        store.sweep()
        assert not [*home.rglob(leftovers.OWNER_FILE)]
        assert markers.died_while_loading(entry) == bool(deaths)
        assert markers.note_death(entry)
    markers.clear_loading(entry)
    assert not markers.died_once_while_loading(entry)


def owner_in(path: Path) -> Owner:
    """This process, as it writes itself into a file that it does not hold any more."""
    with owning(path):
        pass
    owner = read_owner(path)
    assert owner is not None
    return owner


# What of an owner differs from this process, when its file was written, and what a free lock tells.
OWNERS = [
    ({}, "now", "dead"),
    ({"process": "another"}, "now", "dead"),
    ({"machine": "renamed"}, "now", "dead"),  # a container of this machine with another name
    ({"boot": "before"}, "before", "dead"),
    ({"boot": "theirs"}, "now", "unknown"),  # of another machine of this name
    ({"boot": ""}, "now", "unknown"),  # the lock could not be had
    ({"machine": "another", "boot": "theirs"}, "now", "unknown"),
    ({"machine": "another", "boot": "theirs"}, "before", "unknown"),
]


@pytest.mark.parametrize(("changes", "written", "free"), OWNERS, ids=str)
def test_a_lock_that_is_held_is_a_live_process(
    changes: dict[str, str], written: str, free: str, tmp_path: Path
) -> None:
    path = tmp_path / "owner"
    owner = owner_in(path).model_copy(update=changes)
    if written == "before":
        os.utime(path, (BEFORE, BEFORE))
    assert state(owner, path) == free
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert state(owner, path) == "alive"
    path.unlink()
    assert state(owner, path) == "unknown"


def test_where_the_system_names_no_boot_the_machine_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_BOOT_ID", tmp_path / "none")
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    path = tmp_path / "owner"
    owner = owner_in(path)
    assert owner.boot == owner.machine == layout.machine_id()
    assert state(owner, path) == "dead"
    os.utime(path, (BEFORE, BEFORE))
    for changes in ({"boot": "theirs"}, {"boot": "another", "machine": "another"}):
        assert state(owner.model_copy(update=changes), path) == "unknown"


@pytest.mark.parametrize("of", ["system", "file system"])
def test_without_locks_nobody_knows(of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, locked = tmp_path / "owner", owner_in(tmp_path / "locked")
    if of == "system":
        monkeypatch.setattr(files, "HAVE_LOCKS", False)
    else:
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(37, "No locks available")))
    with owning(path):
        assert read_owner(path) == locked.model_copy(update={"boot": ""})
        assert not [link for link in Path("/proc/self/fd").iterdir() if link.exists() and link.samefile(path)]
        assert (state(locked, path), state(locked, tmp_path / "locked")) == ("unknown", "unknown")


def test_a_fork_holds_none_of_its_parents_locks(tmp_path: Path) -> None:
    """It may live on when the parent has died, and is another process."""
    path, own = tmp_path / "owner", tmp_path / "own"
    ready = multiprocessing.get_context("fork").Event()

    def hold() -> None:
        with owning(own):
            ready.set()
            signal.pause()

    with owning(path):
        child = multiprocessing.get_context("fork").Process(target=hold, daemon=True)
        child.start()
        assert ready.wait(60)
        parents, childs = read_owner(path), read_owner(own)
        assert parents is not None and childs is not None and parents.process != childs.process
        assert (state(parents, path), state(childs, own)) == ("alive", "alive")
    assert (state(parents, path), state(childs, own)) == ("dead", "alive")
    assert child.pid is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert state(childs, own) == "dead"  # while nobody has asked how it ended
    child.join()


@pytest.mark.parametrize("place", [os.mkdir, lambda path: path.symlink_to(path.with_name("elsewhere"))])
def test_an_owner_takes_no_file_over(place: Callable[[Path], object], tmp_path: Path) -> None:
    place(tmp_path / "owner")
    with owning(tmp_path / "owner"):  # nobody is told
        assert [*tmp_path.iterdir()] == [tmp_path / "owner"]
    assert read_owner(tmp_path / "owner") is None


@pytest.mark.parametrize("boot", ["", ', "boot": 1', ', "boot": "1", "pid": 1'])
def test_a_damaged_owner_is_none(boot: str, tmp_path: Path) -> None:
    (tmp_path / "owner").write_text(f'{{"process": "1", "machine": "1"{boot}}}')
    assert read_owner(tmp_path / "owner") is None
