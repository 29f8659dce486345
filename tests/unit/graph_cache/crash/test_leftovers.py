"""What dead processes left behind goes at once; what may still be written stays."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from onegraph.graph_cache.crash.leftovers import OWNER_FILE
from onegraph.graph_cache.crash.liveness import read_owner, this_process
from onegraph.graph_cache.disk.inventory import over
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.store import Store

DAY = 24 * 3600


def aged(path: Path, seconds: float) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


@pytest.fixture
def staging(store: Store) -> Path:
    """Where entries are put together."""
    store.private.make()
    return store.home / ".staging"


def staged(location: Path, owner: dict[str, object] | None, age: float = 0) -> Path:
    """A staging folder that another process made."""
    folder = location / "s-old"
    folder.mkdir()
    (folder / "graph.aoti").write_bytes(b"half")
    if owner is not None:
        (folder / OWNER_FILE).write_text(json.dumps(json.loads(this_process().to_text()) | owner))
        if owner.get("boot") == "before":
            aged(folder / OWNER_FILE, 3650 * DAY)
    return aged(folder, age)


def dead_pid() -> int:
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    assert process.pid is not None
    return process.pid


LEFT = [
    ({}, 2 * DAY, True),
    ({"started": "1"}, 0, False),
    ({"boot": "before"}, 0, False),
    ({"boot": "another"}, 0, True),  # of another machine of this name, which runs now
    ({"boot": "another"}, 2 * DAY, False),
    ({"namespace": "pid:[1]"}, 0, True),
    ({"namespace": "pid:[1]"}, 2 * DAY, False),
    ({"machine": "another", "boot": "another"}, 0, True),
    ({"machine": "another", "boot": "another"}, 2 * DAY, False),
    (None, DAY / 2, True),
    (None, 2 * DAY, False),
    (None, -2 * DAY, False),
]


@pytest.mark.parametrize("by", ["sweep", "prune"])
@pytest.mark.parametrize(("owner", "age", "stays"), LEFT, ids=str)
def test_whose_staging_folder_goes(
    owner: dict[str, object] | None, age: float, stays: bool, by: str, store: Store, staging: Path
) -> None:
    folder = staged(staging, owner, age)
    if by == "sweep":
        store.sweep()
    else:
        store.disk.prune(over(None))
    assert folder.exists() == stays


@pytest.mark.parametrize(("age", "stays"), [(0, True), (120, False)])
@pytest.mark.parametrize(
    ("names", "known"),
    [([], True), ([OWNER_FILE], True), (["graph.aoti", "manifest.json"], True), (["graph.aoti"], False)],
)
def test_a_folder_without_its_owner(
    names: list[str], known: bool, age: float, stays: bool, store: Store, staging: Path
) -> None:
    """Its process died before it had written that it is its own, or when the entry was whole; else nobody knows."""
    folder = staging / "s-new"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
        aged(folder / name, age)
    aged(folder, age)
    store.sweep()
    assert folder.exists() == (stays or not known)


def test_a_staging_folder_names_its_owner(store: Store) -> None:
    with store.staging() as folder:
        assert read_owner(folder / OWNER_FILE) == this_process()
        Store(store.home).sweep()
        assert folder.exists()


def test_a_link_is_no_staging_folder(store: Store, staging: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = staged(tmp_path / "elsewhere", {"started": "1"})
    (staging / "s-link").symlink_to(folder)
    store.sweep()
    assert (folder / "graph.aoti").exists()


def test_nothing_is_removed_where_others_could_exchange_folders(store: Store, staging: Path) -> None:
    folder = staged(staging, {"started": "1"})
    store.home.chmod(0o777)
    Store(store.home).sweep()
    assert folder.exists()
    store.home.chmod(0o755)
    Store(store.home).sweep()
    assert not folder.exists()


def test_temporary_files_of_dead_processes_go(store: Store, entry: Entry) -> None:
    dead, home = dead_pid(), store.home
    (home / ".failures").mkdir()
    gone = [
        aged(replaced(entry.folder / f".outcome.json.{dead}"), 120),
        aged(replaced(entry.folder / f".outcome.json.{os.getpid()}"), 2 * DAY),
        aged(replaced(home / f".0123-notes.json.{dead}"), 120),
        aged(replaced(home / ".failures" / f".4567.json.{dead}"), 120),
        aged(replaced(home / f".4567-notes.json.{dead}"), -2 * DAY),  # the clock was turned back
    ]
    stay = [
        replaced(entry.folder / f".other.json.{dead}"),  # another machine may be writing it
        aged(replaced(home / f".notes.json.{os.getpid()}"), 120),
        aged(replaced(entry.folder / ".DS_Store"), 2 * DAY),
        aged(replaced(entry.folder / "outcome.json"), 2 * DAY),
        entry.folder / "graph.aoti",
    ]
    store.sweep()
    assert [path.name for path in gone if path.exists()] == []
    assert [path.name for path in stay if not path.exists()] == []


def replaced(path: Path) -> Path:
    path.write_text("{}")
    return path


def test_a_sweep_of_nothing_makes_nothing(store: Store) -> None:
    store.sweep()
    assert not store.home.exists()
