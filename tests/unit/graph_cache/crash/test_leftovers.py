"""What dead processes left behind goes at once; what may still be written stays."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import key

from onegraph.graph_cache.crash.leftovers import OWNER_FILE, owned_folder, sweep
from onegraph.graph_cache.crash.liveness import owning
from onegraph.graph_cache.disk.inventory import over
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.machine_notes import Failure
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


def owned(folder: Path, **changes: str) -> Path:
    """A folder that another process made and wrote into, and which has ended."""
    folder.mkdir()
    (folder / "graph.aoti").write_bytes(b"half")
    os.mkfifo(folder / "pipe")  # nobody has its other end
    with owning(folder / OWNER_FILE):
        owner = json.loads((folder / OWNER_FILE).read_text())
    (folder / OWNER_FILE).write_text(json.dumps(owner | changes))
    return folder


# Whose it is, its age, and whether it stays; `test_liveness` has who is known to be dead.
LEFT = [
    ("alive", 2 * DAY, True),
    ("dead", 0, False),
    ("unknown", 0, True),
    ("unknown", 2 * DAY, False),
    ("nobody", DAY / 2, True),
    ("nobody", 2 * DAY, False),
    ("nobody", -2 * DAY, False),
]


@pytest.mark.parametrize("by", [Store.sweep, lambda store: store.disk.prune(over(None))], ids=["sweep", "prune"])
@pytest.mark.parametrize(("owner", "age", "stays"), LEFT)
def test_whose_staging_folder_goes(
    owner: str, age: float, stays: bool, by: Callable[[Store], object], store: Store, staging: Path
) -> None:
    folder = owned(staging / "s-old", **({"boot": "theirs"} if owner == "unknown" else {}))
    if owner in ("nobody", "alive"):
        (folder / OWNER_FILE).unlink()
    with owning(folder / OWNER_FILE) if owner == "alive" else contextlib.nullcontext():
        aged(folder, age)
        by(store)
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


def test_a_staging_folder_goes_with_its_process(store: Store) -> None:
    with store.staging() as folder:
        Store(store.home).sweep()
        assert folder.exists()
    assert not folder.exists()


def test_nothing_is_removed_where_others_could_exchange_folders(store: Store, staging: Path, tmp_path: Path) -> None:
    """Nor through a link."""
    folder, elsewhere = owned(staging / "s-old"), owned(tmp_path / "elsewhere")
    (staging / "s-link").symlink_to(elsewhere)
    for mode, stays in ((0o777, True), (0o755, False)):
        store.home.chmod(mode)
        Store(store.home).sweep()
        assert folder.exists() == stays
    assert (elsewhere / "graph.aoti").exists()


def written(path: Path, seconds: float = 0) -> Path:
    path.write_text("{}")
    return aged(path, seconds)


def test_temporary_files_that_nobody_writes_any_more_go(store: Store, entry: Entry) -> None:
    home = store.home
    gone = [
        written(entry.folder / ".outcome.json.1234", 120),
        written(home / ".0123-notes.json.1234", 120),
        written(home / ".4567-notes.json.1234", -2 * DAY),  # the clock was turned back
    ]
    stay = [
        written(entry.folder / ".other.json.1234"),  # a process may be writing it
        written(home / ".notes.json.1234", -120),
        written(entry.folder / ".DS_Store", 2 * DAY),
        written(entry.folder / "outcome.json", 2 * DAY),
        entry.folder / "graph.aoti",
    ]
    store.sweep()
    assert [path.name for path in gone if path.exists()] == []
    assert [path.name for path in stay if not path.exists()] == []


def test_a_file_that_goes_while_it_is_written_is_no_error(
    store: Store, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may have stood still for a minute."""
    really = os.fsync

    def fsync(handle: int) -> None:
        for path in store.home.rglob(".*.json.*"):
            aged(path, 120)
        store.sweep()
        really(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    store.remember(entry, FirstUse(checked={"n": 0.0}))
    store.notes.note_failures(key(), "any size", (Failure(kind="facts", reason={}),))
    store.notes.note_restores({"graph": 1.0})
    assert not [*store.home.rglob("*.json.*")]
    assert len(store.notes.failures(key())) == 1


def test_temporary_folders_of_the_dead_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "onegraph-theirs").mkdir()  # no owner: another program's
    with owned_folder(None) as own:
        (tmp_path / "onegraph-link").symlink_to(owned(tmp_path / "onegraph-dead"))
        sweep(tmp_path / "home", tmp_path / "home" / "graphs")
        assert {path.name for path in tmp_path.iterdir()} == {"onegraph-link", "onegraph-theirs", own.name}
    assert not own.exists()


def test_a_sweep_of_nothing_makes_nothing(store: Store) -> None:
    store.sweep()
    assert not store.home.exists()
