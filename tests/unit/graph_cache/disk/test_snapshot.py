"""A list that is read again only when something has changed, and then always."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.store.entries import publish, quarantine
from support.store.sized import usable

from onegraph.graph_cache.disk import marks, snapshot
from onegraph.graph_cache.disk.listing import Listed, Scan
from onegraph.graph_cache.disk.snapshot import Snapshots
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store


@pytest.fixture(autouse=True)
def old_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes need not grow old before the clock is trusted."""
    monkeypatch.setattr(snapshot, "_UNSURE_NS", -(1 << 62))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.safetensors").write_bytes(b"weights")
    return folder


SOURCE = ModelSource(None, "0123456789ab")


def add(store: Store, checkpoint: Path, number: int = 0) -> Entry:
    """A graph in the home, and a copy beside a checkpoint."""
    return publish(store, ModelSource(checkpoint, "0123456789ab"), usable(number))


def age(store: Store, folder: Path) -> None:
    """Put all times back, so that each change is another time whatever the file system rounds."""
    for path in [folder, *folder.rglob("*"), store.home, *store.home.rglob("*")]:
        os.utime(path, (1e9, 1e9))


Change = Callable[[Store, Entry, Path], object]
CHANGES: dict[str, Change] = {
    "another graph": lambda store, entry, folder: publish(store, ModelSource(None, "0123456789ab"), usable(1)),
    "a copy beside another checkpoint": lambda store, entry, folder: store.save(entry, folder / "b.graphs" / "1"),
    "a graph that is gone": lambda store, entry, folder: shutil.rmtree(entry.folder),
    "all graphs gone": lambda store, entry, folder: shutil.rmtree(store.graphs),
    "all copies gone": lambda store, entry, folder: shutil.rmtree(folder / "a.graphs"),
    "another model": lambda store, entry, folder: marks.note_use(entry.folder, "compiled", SOURCE),
    "quarantined": lambda store, entry, folder: quarantine(store, entry.folder),
    "pinned": lambda store, entry, folder: marks.pin(entry.folder),
    "first use": lambda store, entry, folder: marks.note_use(entry.folder, "restored", SOURCE),
    "a checkpoint that is gone": lambda store, entry, folder: (folder / "a.safetensors").unlink(),
    "another user's rights": lambda store, entry, folder: shutil.rmtree(entry.folder.parent),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_change_is_seen(change: Change, store: Store, checkpoints: Path) -> None:
    entry = add(store, checkpoints / "a.safetensors")
    snapshots = Snapshots(store.disk)
    snapshots.get([checkpoints])
    age(store, checkpoints)
    before = snapshots.get([checkpoints])
    scans = snapshots.scans
    assert snapshots.get([checkpoints]) is before and snapshots.scans == scans
    change(store, entry, checkpoints)
    after = snapshots.get([checkpoints])
    assert snapshots.scans == scans + 1 and after.revision != before.revision
    assert after.entries == store.disk.scan([checkpoints], [], []) != before.entries


def test_a_later_use_is_seen(store: Store, checkpoints: Path) -> None:
    """It changes one file, and no folder."""
    entry = add(store, checkpoints / "a.safetensors")
    marks.note_use(entry.folder, "restored", SOURCE)
    snapshots = Snapshots(store.disk)
    snapshots.get([checkpoints])
    age(store, checkpoints)
    before, _ = snapshots.get([checkpoints]).entries
    marks.note_use(entry.folder, "restored", SOURCE)
    after, _ = snapshots.get([checkpoints]).entries
    assert (before.uses, after.uses) == (1, 2) and after.used > before.used


def test_changes_that_a_clock_may_hide_are_looked_for(
    store: Store, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system gives two changes one time where they are close to each other."""
    monkeypatch.setattr(snapshot, "_UNSURE_NS", 3600 * 10**9)
    add(store, checkpoints / "a.safetensors")
    snapshots = Snapshots(store.disk)
    snapshots.get([checkpoints])
    (checkpoints / "a.safetensors").unlink()
    os.utime(checkpoints, ns=(time.time_ns(), snapshots._stamp[snapshots._watched.index(str(checkpoints))]))
    _, found = snapshots.get([checkpoints]).entries
    assert found.unusable is not None and snapshots.scans == 2


def test_other_folders_are_another_list(store: Store, checkpoints: Path, tmp_path: Path) -> None:
    add(Store(store.home), checkpoints / "a.safetensors")
    snapshots = Snapshots(store.disk)
    assert len(snapshots.get([checkpoints]).entries) == 2
    assert snapshots.get([tmp_path / "nothing"]).by_id.keys() == snapshots.get().by_id.keys()
    assert snapshots.get([checkpoints]).by_id.keys() == {one.id for one in store.disk.scan([checkpoints], [], [])}


def test_what_was_found_so_far_while_the_first_reading_goes_on(
    store: Store, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sorted(str(publish(store, SOURCE, usable(number)).folder) for number in range(2))
    going_on = threading.Event()
    home = Scan.home

    def slow(scan: Scan, graphs: str) -> Iterator[Listed]:
        for one in home(scan, graphs):
            if one.folder == second:
                going_on.wait()
            yield one

    monkeypatch.setattr(Scan, "home", slow)
    snapshots = Snapshots(store.disk)
    partial = snapshots.soon([checkpoints], 0.2)
    assert not partial.complete and [one.folder for one in partial.entries] == [first]
    assert not snapshots.soon([checkpoints], 0.0).complete and snapshots.scans == 1
    going_on.set()
    whole = snapshots.soon([checkpoints], 60)
    assert whole.complete and [one.folder for one in whole.entries] == [first, second]
    assert snapshots.soon([checkpoints], 0.0).complete and whole.by_id == snapshots.get([checkpoints]).by_id


def test_a_first_reading_that_failed_is_tried_again(
    store: Store, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, checkpoints / "a.safetensors")
    snapshots = Snapshots(store.disk)
    with monkeypatch.context() as patch:
        patch.setattr(Scan, "home", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            snapshots.soon([checkpoints], 60)
    assert len(snapshots.soon([checkpoints], 60).entries) == 2
