"""What dead processes left behind goes at once; what may still be written stays."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from support.store.entries import publish

from onegraph.graph_cache.crash.leftovers import OWNER_FILE
from onegraph.graph_cache.crash.liveness import read_owner, this_process
from onegraph.graph_cache.files import replace_text
from onegraph.graph_cache.layout import COMPILING_FOLDER
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.open_folder import OpenFolder

DAY = 24 * 3600


def aged(path: Path, seconds: float) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def staged(location: Path, owner: dict[str, object] | None, age: float = 0) -> Path:
    """A staging folder that another process made."""
    folder = location / ".staging-old"
    folder.mkdir(parents=True)
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


@pytest.mark.parametrize("by", ["sweep", "staging"])
@pytest.mark.parametrize(("owner", "age", "stays"), LEFT, ids=str)
def test_whose_staging_folder_goes(
    owner: dict[str, object] | None, age: float, stays: bool, by: str, store: Store, checkpoint: ModelSource
) -> None:
    locations = store.locations(checkpoint)
    folder = staged(locations[0], owner, age)
    if by == "sweep":
        store.sweep(locations)
    else:
        with store.staging(checkpoint):
            pass
    assert folder.exists() == stays


@pytest.mark.parametrize(("age", "stays"), [(0, True), (120, False)])
@pytest.mark.parametrize(
    ("names", "known"),
    [([], True), ([OWNER_FILE], True), (["graph.aoti", "manifest.json"], True), (["graph.aoti"], False)],
)
def test_a_folder_without_its_owner(
    names: list[str], known: bool, age: float, stays: bool, store: Store, checkpoint: ModelSource
) -> None:
    """Its process died before it had written that it is its own, or when the entry was whole; else nobody knows."""
    folder = store.locations(checkpoint)[0] / ".staging-new"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()
        aged(folder / name, age)
    aged(folder, age)
    store.sweep(store.locations(checkpoint))
    assert folder.exists() == (stays or not known)


def test_a_staging_folder_names_its_owner(store: Store, checkpoint: ModelSource) -> None:
    with store.staging(checkpoint) as folder:
        assert read_owner(folder / OWNER_FILE) == this_process()
        Store(store.home).sweep(store.locations(checkpoint))
        assert folder.exists()


def test_what_tells_the_owner_goes_last(store: Store, checkpoint: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it removes its folder leaves one that the next start removes."""

    really = OpenFolder.unlink

    def dies(folder: OpenFolder, name: str) -> None:
        if name == OWNER_FILE:
            raise KeyboardInterrupt
        really(folder, name)

    def used() -> Path:
        with store.staging(checkpoint) as folder:
            for name in ("manifest.json", "graph.aoti", "compile.log"):
                (folder / name).touch()
        return folder

    monkeypatch.setattr(OpenFolder, "unlink", dies)
    with pytest.raises(KeyboardInterrupt):
        used()
    (folder,) = (store.home / COMPILING_FOLDER).iterdir()
    assert [path.name for path in folder.iterdir()] == [OWNER_FILE]


def test_a_link_is_no_staging_folder(store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    folder = staged(tmp_path / "elsewhere", {"started": "1"})
    location = store.locations(checkpoint)[0]
    location.mkdir(parents=True)
    (location / ".staging-link").symlink_to(folder)
    store.sweep([location])
    assert (folder / "graph.aoti").exists()


def test_temporary_files_of_dead_processes_go(store: Store, checkpoint: ModelSource) -> None:
    entry, dead, home = publish(store, checkpoint), dead_pid(), store.home
    home.mkdir(exist_ok=True)
    gone = [
        aged(replaced(entry.folder / f".outcome.json.{dead}"), 120),
        aged(replaced(entry.folder / f".outcome.json.{os.getpid()}"), 2 * DAY),
        aged(replaced(home / f".0123-compile-times.json.{dead}"), 120),
        aged(replaced(home / f".4567-compile-times.json.{dead}"), -2 * DAY),  # the clock was turned back
    ]
    stay = [
        replaced(entry.folder / f".other.json.{dead}"),  # another machine may be writing it
        aged(replaced(home / f".compile-times.json.{os.getpid()}"), 120),
        aged(replaced(entry.folder / ".DS_Store"), 2 * DAY),
        aged(replaced(entry.folder / "outcome.json"), 2 * DAY),
        entry.folder / "graph.aoti",
    ]
    store.sweep(store.locations(checkpoint))
    assert [path.name for path in gone if path.exists()] == []
    assert [path.name for path in stay if not path.exists()] == []


def replaced(path: Path) -> Path:
    path.write_text("{}")
    return path


def test_a_sweep_of_nothing_makes_nothing(store: Store, checkpoint: ModelSource, models: Path) -> None:
    store.sweep(store.locations(checkpoint))
    assert [path.name for path in models.iterdir()] == ["photo.safetensors"]
    assert not store.home.exists()


def test_a_failed_rename_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "outcome.json" / "x").mkdir(parents=True)
    with pytest.raises(OSError, match="outcome"):
        replace_text(tmp_path / "outcome.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["outcome.json"]
