"""The budget on the disk: what counts, what goes first, and what stays."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import NOWHERE, key, publish, quarantine, snapshot
from support.store.sized import BIG, left, listed, on_disk, usable, used
from support.windows.absent import needs_posix

from onegraph.common.installed import torch_version
from onegraph.common.reasons import CheckpointGone, GraphRemoved, MadeForAnother, NoGraph, Unsigned
from onegraph.graph_cache.disk import inventory, leases, marks
from onegraph.graph_cache.disk.budget import VARIABLE
from onegraph.graph_cache.disk.inventory import over, unusable
from onegraph.graph_cache.disk.leases import Lease
from onegraph.graph_cache.disk.listing import bytes_on_disk
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store


def test_the_least_recently_used_goes_first(store: Store, three: list[Entry]) -> None:
    used(three[0], 2e9)
    before = snapshot(store.home)
    would = store.disk.would_prune(over(2 * BIG + BIG // 2))
    assert snapshot(store.home) == before
    done = store.disk.prune(over(2 * BIG + BIG // 2))
    assert [one.path for one in done.removed] == [one.path for one in would.removed] == [three[1].folder]
    assert done.before - done.after == done.removed[0].bytes
    assert done.after == would.after == on_disk(store)
    assert left(store) == sorted([str(three[0].folder), str(three[2].folder)])


def test_what_is_of_no_use_here_goes_before_what_was_used_longer_ago(store: Store, three: list[Entry]) -> None:
    old_torch = publish(store, NOWHERE, key(target={"device": "cpu", "torch": "1.0"}), bytes(BIG))
    bad = publish(store, NOWHERE, usable(9), bytes(BIG))
    quarantine(store, bad.folder)
    done = store.disk.prune(over(3 * BIG + BIG // 2))
    assert {*left(store)} == {str(entry.folder) for entry in three}
    first, second = done.removed
    assert first.quarantined and second.unusable == MadeForAnother("torch", "1.0", torch_version())
    old = publish(store, NOWHERE, key(format=1), b"x")
    assert [one.path for one in store.disk.prune(unusable()).removed] == [old.folder]
    assert old_torch.folder != old.folder and len(left(store)) == 3


def test_pinned_graphs_stay(store: Store, three: list[Entry]) -> None:
    for entry in three[:2]:
        store.disk.pin(listed(store, entry))
    assert [one.path for one in store.disk.prune(over(1)).removed] == [three[2].folder]
    for one in store.disk.entries():
        store.disk.unpin(one)
    assert len(store.disk.prune(over(1)).removed) == 2
    assert left(store) == []


@pytest.mark.parametrize("mode", [0o755, 0o2775, 0o777])
def test_the_budget_counts_the_home_whoever_may_write_the_models(
    mode: int, store: Store, checkpoint: ModelSource, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies beside checkpoints are not counted, and bring back what the budget removed."""
    models.chmod(mode)
    monkeypatch.setenv(VARIABLE, f"{2 * BIG + BIG // 2}B")
    made = [publish(store, checkpoint, usable(number), bytes(BIG)) for number in range(4)]
    assert bytes_on_disk(store.disk.entries()) == on_disk(store) <= 2 * BIG + BIG // 2
    assert {*left(store)} == {str(entry.folder) for entry in made[2:]}
    copies = store.disk.copies()
    assert [one.path.name for one in copies] == sorted(entry.folder.name for entry in made)
    assert {one.model for one in copies} == {"photo/0123456789ab"} and bytes_on_disk(copies) > 4 * BIG
    assert isinstance(store.take(usable(0), checkpoint), Taken)
    assert len(left(store)) == 2 and on_disk(store) <= 2 * BIG + BIG // 2


def test_copies_are_pruned_on_demand(store: Store, checkpoint: ModelSource, tuned: ModelSource, models: Path) -> None:
    """Never with the home's graphs, and only those that this user's installation signed."""
    (models / "tuned.safetensors").touch()
    for number, source in enumerate((checkpoint, tuned, checkpoint)):
        publish(store, source, usable(number), bytes(BIG))
    (theirs,) = (one for one in store.disk.copies() if "tuned" in one.model)
    (theirs.path / "signature.json").unlink()
    (models / "photo.safetensors").unlink()
    before = snapshot(store.graphs)
    would = store.disk.prune_copies(unusable(), None, dry_run=True)
    assert [one.unusable for one in would.removed] == 2 * [CheckpointGone("photo")]
    assert store.disk.prune_copies(unusable(), [models / "elsewhere"], dry_run=False).removed == ()
    done = store.disk.prune_copies(over(1), None, dry_run=False)
    assert [one.path for one in done.removed] == [one.path for one in would.removed]
    assert [one.facts.code for one in store.disk.copies()] == [Unsigned.code]
    assert {path.name for path in models.iterdir()} == {"tuned.graphs", "tuned.safetensors"}  # nothing empty
    assert snapshot(store.graphs) == before


# Races ------------------------------------------------------------------------------------------------------------


def test_a_process_that_loses_the_race_misses(store: Store, three: list[Entry]) -> None:
    found = store.find(usable(0))
    assert isinstance(found, Hit)
    store.disk.prune(over(1))
    assert store.lease(found.entry) == GraphRemoved()
    assert store.find(usable(0)) == Miss(NoGraph())


@pytest.mark.parametrize("step", ["read_trusted", "check"])
def test_a_look_up_whose_entry_goes_meanwhile_misses(
    step: str, store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    from onegraph.graph_cache import lookup

    before: Callable[..., object] = getattr(lookup, step)

    def after_removal(*args: object) -> object:
        if three[0].folder.exists():
            assert store.disk.delete(listed(store, three[0])) == "removed"
        return before(*args)

    monkeypatch.setattr(lookup, step, after_removal)
    assert store.find(usable(0)) == Miss(GraphRemoved())


def test_a_removal_that_dies_in_between_is_finished_later(
    store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove() -> None:
        monkeypatch.setattr(shutil, "rmtree", lambda *args, **options: os._exit(9))
        store.disk.prune(over(1))

    process = multiprocessing.get_context("fork").Process(target=remove)
    process.start()
    process.join()
    assert process.exitcode == 9
    assert isinstance(store.find(usable(0)), Miss)
    (away,) = (store.home / ".staging").iterdir()
    os.utime(away, (1, 1))
    store.sweep()
    assert not away.exists()
    assert len(left(store)) == 2


def test_what_cannot_be_removed_stays_whole(store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fails)
        assert store.disk.prune(over(1)).removed == ()
        assert store.disk.delete(listed(store, three[0])) == ("kept" if os.name == "posix" else "used")
    assert store.find(usable(0)) == Hit(three[0])
    gone = listed(store, three[0])
    shutil.rmtree(three[0].folder)
    assert store.disk.delete(gone) == "gone"


# Publishing -------------------------------------------------------------------------------------------------------


def test_a_publish_makes_room(store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{3 * BIG + BIG // 2}B")
    new = publish(store, NOWHERE, usable(3), bytes(BIG))
    assert not three[0].folder.exists()
    assert new.folder.exists() and three[1].folder.exists() and three[2].folder.exists()
    assert on_disk(store) <= 3 * BIG + BIG // 2


@needs_posix("under wine a folder goes although one of its files is open, which Windows refuses")
def test_a_graph_that_is_larger_than_the_budget_is_kept_all_the_same(
    store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1 KiB")
    lease = store.lease(three[2])
    new = publish(store, NOWHERE, usable(3), bytes(BIG))
    assert sorted(left(store)) == sorted([str(three[2].folder), str(new.folder)])
    del lease


def test_without_a_limit_nothing_goes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    for number in range(3):
        publish(store, NOWHERE, usable(number), bytes(BIG))
    assert len(left(store)) == 3
    assert store.disk.prune(over(None)).removed == ()


def test_an_error_of_the_budget_costs_no_graph(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(inventory, "bytes_below", fail)
    assert publish(store, NOWHERE, usable(0)).folder.exists()
    monkeypatch.setattr(inventory, "LOCK_FILE", "missing/lock")  # as where no lock can be had
    assert publish(store, NOWHERE, usable(1)).folder.exists()


def test_whoever_shows_lists_hears_of_changes(store: Store, entry: Entry) -> None:
    heard: list[int] = []
    store.disk.on_change = lambda: heard.append(1) or 1 / 0  # type: ignore[func-returns-value]
    one = listed(store, entry)
    for change in (lambda: store.note_use(entry, "restored", NOWHERE), lambda: store.disk.pin(one)):
        change()
    assert store.disk.delete(one) == "removed" and len(heard) == 3


LIMIT = 1_500_000
PUBLISHES, PROCESSES = 200, 8


def publish_many(home: Path, first: int, over_by: multiprocessing.sharedctypes.Synchronized[int]) -> None:
    """Publish graphs of random sizes, use some of them, and watch that nothing in use goes."""
    store, rng = Store(home), random.Random(first)
    for number in range(first, PUBLISHES, PROCESSES):
        size = rng.randrange(1, 100_000)
        entry = publish(store, NOWHERE, usable(number), rng.randbytes(size))
        lease = store.lease(entry)
        if isinstance(lease, Lease):
            store.note_use(entry, "compiled", NOWHERE)
            taken = bytes_on_disk(Store(home).disk.entries())
            with over_by.get_lock():
                over_by.value = max(over_by.value, taken - LIMIT)
            assert (entry.folder / "graph.aoti").stat().st_size == size, "removed although it is in use"
            lease.release()


def test_eight_processes_keep_within_the_budget(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{LIMIT}B")
    kept = publish(store, NOWHERE, usable(10_000), bytes(BIG))
    with leases.exclusive(kept.folder) as use:
        assert use == "free"
    lease = store.lease(kept)
    context = multiprocessing.get_context("fork")
    over_by = context.Value("q", -LIMIT)
    processes = [context.Process(target=publish_many, args=(store.home, n, over_by)) for n in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    assert over_by.value <= 100_000 + 5_000  # one entry
    there = store.disk.entries()
    assert kept.folder in {one.path for one in there}
    assert bytes_on_disk(there) == on_disk(store) <= LIMIT
    assert len(there) == len([*store.graphs.glob("*/*/manifest.json")]) < PUBLISHES
    assert [*(store.home / ".staging").iterdir()] == []
    assert all(one.path.joinpath("graph.aoti").exists() for one in there)
    del lease


def test_what_others_put_in_the_place_of_a_mark_is_not_written(
    store: Store, three: list[Entry], tmp_path: Path
) -> None:
    own = tmp_path / "letter"
    own.write_text("dear")
    (three[0].folder / marks.USES_FILE).unlink()
    (three[0].folder / marks.USES_FILE).symlink_to(own)
    (three[1].folder / marks.MODELS_FILE).unlink()
    (three[1].folder / marks.MODELS_FILE).symlink_to(own)
    (three[2].folder / marks.USES_FILE).unlink()
    os.mkfifo(three[2].folder / marks.USES_FILE)
    for entry in three:
        marks.note_use(entry.folder, "restored", NOWHERE)
    assert own.read_text() == "dear"
    assert len(store.disk.entries()) == 3
