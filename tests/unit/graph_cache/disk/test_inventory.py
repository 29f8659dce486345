"""The budget on the disk: what counts, what goes first, and what stays."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import key, publish, quarantine, snapshot

from onegraph.common.installed import torch_version
from onegraph.common.reasons import CheckpointGone, GraphRemoved, MadeForAnother, NoGraph
from onegraph.graph_cache.disk import inventory, leases, marks
from onegraph.graph_cache.disk.budget import VARIABLE
from onegraph.graph_cache.disk.inventory import over, unusable
from onegraph.graph_cache.disk.leases import Lease
from onegraph.graph_cache.disk.listing import Listed, bytes_on_disk
from onegraph.graph_cache.disk.report import describe, find, state_of, totals
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.open_folder import OpenFolder

BIG = 100_000  # bytes, beside which a manifest is small


def usable(number: int = 0, **changes: object) -> GraphKey:
    """A key that this installation can use, one of many."""
    return key(architecture=f"{number:064x}", target={"device": "cpu", "torch": torch_version()}, **changes)


def used(entry: Entry, seconds: float) -> None:
    """Have an entry be used so long after the first second of 1970."""
    marks.note_use(entry.folder, "restored")
    for path in entry.folder.iterdir():
        os.utime(path, (seconds, seconds))


@pytest.fixture
def home_source() -> ModelSource:
    return ModelSource(None, "0123456789ab")


@pytest.fixture
def three(store: Store, home_source: ModelSource) -> list[Entry]:
    """Graphs that were used one after the other."""
    found = [publish(store, home_source, usable(n), bytes(BIG)) for n in range(3)]
    for number, entry in enumerate(found):
        used(entry, 1e9 + number)
    return found


def on_disk(store: Store) -> int:
    """Bytes of all entries' files, each once, as the system tells them."""
    files = [one.lstat() for one in store.home.glob("*/*/*/*") if one.is_file()]
    return sum({(one.st_dev, one.st_ino): one.st_size for one in files}.values())


def listed(store: Store, entry: Entry) -> Listed:
    """An entry as lists show it."""
    return next(one for one in store.disk.all_entries() if one.path == entry.folder)


def left(store: Store) -> list[str]:
    return [one.folder for one in store.disk.all_entries()]


def test_a_list_counts_each_byte(store: Store, three: list[Entry]) -> None:
    there = store.disk.entries()
    assert [one.path for one in there] == sorted(entry.folder for entry in three)
    assert bytes_on_disk(there) == on_disk(store) > 3 * BIG
    assert [(one.uses, one.pinned, one.in_use, one.unusable) for one in there] == [(1, False, False, None)] * 3
    assert len({one.id for one in there}) == 3


def test_the_least_recently_used_goes_first(store: Store, three: list[Entry]) -> None:
    used(three[0], 2e9)
    would = store.disk.would_prune(over(2 * BIG + BIG // 2))
    done = store.disk.prune(over(2 * BIG + BIG // 2))
    assert [one.path for one in done.removed] == [one.path for one in would.removed] == [three[1].folder]
    assert done.before - done.after == done.removed[0].bytes
    assert done.after == would.after == on_disk(store)
    assert left(store) == sorted([str(three[0].folder), str(three[2].folder)])


def test_a_dry_run_changes_nothing(store: Store, three: list[Entry]) -> None:
    store.disk.entries()
    before = snapshot(store.home)
    assert len(store.disk.would_prune(over(1)).removed) == 3
    assert snapshot(store.home) == before


def test_what_is_of_no_use_here_goes_before_what_was_used_longer_ago(
    store: Store, three: list[Entry], checkpoint: ModelSource, home_source: ModelSource
) -> None:
    assert checkpoint.path is not None
    store.disk.know(checkpoint.path)
    old_torch = publish(store, home_source, key(target={"device": "cpu", "torch": "1.0"}), bytes(BIG))
    orphan = publish(store, checkpoint, usable(8), bytes(BIG))
    bad = publish(store, home_source, usable(9), bytes(BIG))
    checkpoint.path.unlink()
    quarantine(store, bad.folder)
    done = store.disk.prune(over(3 * BIG + BIG // 2))
    by_reason = {one.path: one.unusable for one in done.removed}
    assert len(done.removed) == 3 and set(left(store)) == {str(entry.folder) for entry in three}
    assert by_reason[old_torch.folder] == MadeForAnother("torch", "1.0", torch_version())
    assert by_reason[orphan.folder] == CheckpointGone("photo")
    assert done.removed[0].quarantined
    assert not orphan.folder.parents[2].exists()  # nothing empty stays beside the checkpoint


def test_all_that_is_of_no_use_goes_on_demand(store: Store, three: list[Entry], home_source: ModelSource) -> None:
    old = publish(store, home_source, key(format=1), b"x")
    assert [one.path for one in store.disk.prune(unusable()).removed] == [old.folder]


def test_pinned_graphs_stay(store: Store, three: list[Entry]) -> None:
    for entry in three[:2]:
        store.disk.pin(listed(store, entry))
    assert [one.path for one in store.disk.prune(over(1)).removed] == [three[2].folder]
    for one in store.disk.entries():
        store.disk.unpin(one)
    assert len(store.disk.prune(over(1)).removed) == 2
    assert left(store) == []


def test_a_saved_graph_is_pinned(store: Store, three: list[Entry], tmp_path: Path) -> None:
    saved = store.save(three[0], usable(0), tmp_path / "saved" / "unet.graphs" / "0123456789ab")
    assert (saved.folder / marks.PIN_FILE).exists()


def hold(folder: Path, ready: multiprocessing.synchronize.Event) -> None:
    lease = leases.take(folder)
    assert isinstance(lease, Lease)
    ready.set()
    multiprocessing.Event().wait()


def test_graphs_in_use_stay_until_their_process_ends(store: Store, three: list[Entry]) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hold, args=(three[0].folder, ready))
    process.start()
    assert ready.wait(60)
    done = store.disk.prune(over(1))
    assert [one.path for one in done.used] == [three[0].folder]
    assert [one.path for one in store.disk.entries() if one.in_use] == [three[0].folder]
    assert store.disk.delete(listed(store, three[0])) == "used"
    process.kill()
    process.join()
    assert store.disk.delete(listed(store, three[0])) == "removed"
    assert left(store) == []


def test_a_lease_ends_with_its_object(store: Store, three: list[Entry]) -> None:
    lease = store.lease(three[0])
    assert leases.use_of(three[0].folder) == "used"
    del lease
    assert leases.use_of(three[0].folder) == "free"


def test_a_process_that_loses_the_race_misses(store: Store, three: list[Entry], home_source: ModelSource) -> None:
    found = store.lookup(usable(0), home_source)
    assert isinstance(found, Hit)
    store.disk.prune(over(1))
    assert store.lease(found.entry) == GraphRemoved()
    with store.private(found.entry) as copy:
        assert copy == GraphRemoved()
    assert store.lookup(usable(0), home_source) == Miss(NoGraph())


@pytest.mark.parametrize("step", ["read", "check"])
def test_a_look_up_whose_entry_goes_meanwhile_misses(
    step: str, store: Store, three: list[Entry], home_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onegraph.graph_cache import lookup

    name = {"read": "read_trusted", "check": "check"}[step]
    before: Callable[..., object] = getattr(lookup, name)

    def after_removal(*args: object) -> object:
        if three[0].folder.exists():
            assert store.disk.delete(listed(store, three[0])) == "removed"
        return before(*args)

    monkeypatch.setattr(lookup, name, after_removal)
    assert store.lookup(usable(0), home_source) == Miss(GraphRemoved())


def test_a_removal_that_dies_in_between_is_finished_later(
    store: Store, three: list[Entry], home_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*args: object, **kwargs: object) -> None:
        os._exit(9)

    def remove() -> None:
        monkeypatch.setattr(OpenFolder, "remove", die)
        store.disk.prune(over(1))

    process = multiprocessing.get_context("fork").Process(target=remove)
    process.start()
    process.join()
    assert process.exitcode == 9
    assert isinstance(store.lookup(usable(0), home_source), Miss)
    (away,) = three[0].folder.parents[1].glob(".staging-removed-*")
    os.utime(away, (1, 1))
    store.sweep(store.locations(home_source))
    assert not away.exists()
    assert len(left(store)) == 2


def test_read_only_and_foreign_graphs_are_never_touched(
    store: Store, three: list[Entry], home_source: ModelSource
) -> None:
    (three[1].folder / "signature.json").unlink()
    before = snapshot(three[1].folder)
    component = three[0].folder.parent
    component.chmod(0o555)
    try:
        assert store.disk.prune(over(1)).removed == ()
        marks.note_use(three[0].folder, "restored")
    finally:
        component.chmod(0o755)
    store.disk.prune(over(1))
    assert left(store) == [str(three[1].folder)]
    assert snapshot(three[1].folder) == before


def test_a_publish_makes_room(
    store: Store, three: list[Entry], home_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{3 * BIG + BIG // 2}B")
    new = publish(store, home_source, usable(3), bytes(BIG))
    assert not three[0].folder.exists()
    assert new.folder.exists() and three[1].folder.exists() and three[2].folder.exists()
    assert on_disk(store) <= 3 * BIG + BIG // 2


def test_a_graph_that_is_larger_than_the_budget_is_kept_all_the_same(
    store: Store, three: list[Entry], home_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1 KiB")
    lease = store.lease(three[2])
    new = publish(store, home_source, usable(3), bytes(BIG))
    assert sorted(left(store)) == sorted([str(three[2].folder), str(new.folder)])
    del lease


def test_without_a_limit_nothing_goes(store: Store, home_source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    for number in range(3):
        publish(store, home_source, usable(number), bytes(BIG))
    assert len(left(store)) == 3
    assert store.disk.prune(over(None)).removed == ()


def test_an_error_of_the_budget_costs_no_graph(
    store: Store, home_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(inventory, "scan", fail)
    assert publish(store, home_source, usable(0)).folder.exists()


def test_links_to_one_file_count_once_and_go_together(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, home_source: ModelSource
) -> None:
    assert checkpoint.path is not None and tuned.path is not None
    tuned.path.write_bytes(b"x")
    store.disk.know(checkpoint.path)
    entry = publish(store, checkpoint, usable(0), bytes(BIG))
    shared = store.share_with_model(Hit(entry, foreign=True), usable(0), tuned)
    assert shared.folder != entry.folder
    other = publish(store, home_source, usable(1), bytes(BIG))
    used(entry, 1e9)
    used(other, 2e9)
    used(shared, 3e9)
    assert 2 * BIG < bytes_on_disk(store.disk.all_entries()) < 2.5 * BIG
    store.disk.prune(over(int(1.5 * BIG)))
    assert {one.path for one in store.disk.all_entries()} == {entry.folder, shared.folder}
    store.disk.prune(over(1))
    assert left(store) == []


def test_what_is_listed_is_read_once(store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    from onegraph.graph_cache.disk import facts

    reads: list[Path] = []
    read = facts.read_text

    def counted(folder: Path) -> object:
        reads.append(folder)
        return read(folder)

    monkeypatch.setattr(facts, "read_text", counted)
    first = store.disk.entries()
    reads.clear()
    assert Store(store.home).disk.entries() == first
    assert reads == []
    (three[1].folder / "signature.json").unlink()
    assert listed(Store(store.home), three[1]).facts.code == "unsigned"
    assert reads == [three[1].folder]
    shutil.rmtree(three[0].folder)
    assert len(Store(store.home).disk.entries()) == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "trust": [], "roots": 3, "rows": {}}']
)
def test_a_damaged_file_of_facts_is_as_none(text: str, store: Store, three: list[Entry]) -> None:
    store.disk.entries()
    (listing,) = store.home.glob("*-graphs.json")
    listing.write_text(text)
    assert len(store.disk.entries()) == 3


def test_totals(store: Store, three: list[Entry], home_source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1GiB")
    marks.note_use(three[0].folder, "restored")
    publish(store, home_source, key())
    found = totals(store.disk, store.disk.entries())
    assert (found["graphs"], found["restores"], found["saved_seconds"]) == (4, 4, 4.0)
    assert found["bytes"] == found["counted_bytes"] == on_disk(store)
    assert found["states"] == {"signed": 3, "stale": 1}
    assert [state_of(one) for one in store.disk.entries()].count("signed") == 3


LIMIT = 1_500_000
PUBLISHES, PROCESSES = 200, 8


def publish_many(home: Path, first: int, over_by: multiprocessing.sharedctypes.Synchronized[int]) -> None:
    """Publish graphs of random sizes, use some of them, and watch that nothing in use goes."""
    store, rng = Store(home), random.Random(first)
    source = ModelSource(None, f"{first:012x}")
    for number in range(first, PUBLISHES, PROCESSES):
        size = rng.randrange(1, 100_000)
        entry = publish(store, source, usable(number), rng.randbytes(size))
        lease = store.lease(entry)
        if isinstance(lease, Lease):
            store.note_use(entry, "compiled")
            taken = bytes_on_disk(Store(home).disk.entries())
            with over_by.get_lock():
                over_by.value = max(over_by.value, taken - LIMIT)
            assert (entry.folder / "graph.aoti").stat().st_size == size, "removed although it is in use"
            lease.release()


def test_eight_processes_keep_within_the_budget(
    store: Store, home_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{LIMIT}B")
    kept = publish(store, home_source, usable(10_000), bytes(BIG))
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
    assert len(there) == len(list(store.home.glob("*/*/*/manifest.json"))) < PUBLISHES
    assert list(store.home.glob("*/.staging-*")) == []
    assert all(one.path.joinpath("graph.aoti").exists() for one in there)
    del lease


def test_an_entry_is_named_by_id_key_or_model(store: Store, three: list[Entry]) -> None:
    there = store.disk.entries()
    one = there[1]
    assert find(there, one.id) == find(there, one.id[:6]) == find(there, usable_digest(one)) == [one]
    assert find(there, "home") == find(there, "home/0123456789ab") == there
    assert find(there, one.id[:2]) == find(there, "") == find(there, "other") == []


def usable_digest(one: Listed) -> str:
    """The digest of an entry's key, which its folder's name ends with."""
    return one.folder.rpartition("-")[2]


def test_an_entry_is_described_for_programs(store: Store, three: list[Entry], home_source: ModelSource) -> None:
    lease = store.lease(three[0])
    found = describe(listed(store, three[0]))
    assert (found["restores"], found["in_use"], found["state"], found["reason"]) == (1, True, "signed", None)
    assert found["used"] == "2001-09-09T01:46:40+00:00"
    assert str(store.home) not in str(found)
    old = describe(listed(store, publish(store, home_source, key(format=1))))
    assert (old["state"], old["reason"]["code"]) == ("stale", "made_for_another")
    del lease


def test_what_others_put_in_the_place_of_a_mark_is_not_written(
    store: Store, three: list[Entry], tmp_path: Path
) -> None:
    own = tmp_path / "letter"
    own.write_text("dear")
    for number, put in enumerate((os.symlink, os.link)):
        path = three[number].folder / marks.USES_FILE
        path.unlink()
        put(own, path)
        marks.note_use(three[number].folder, "restored")
    (three[2].folder / marks.USES_FILE).unlink()
    os.mkfifo(three[2].folder / marks.USES_FILE)
    marks.note_use(three[2].folder, "restored")
    assert own.read_text() == "dear"
    assert len(store.disk.entries()) == 3


def test_lists_do_not_take_each_others_questions_for_a_use(store: Store, three: list[Entry]) -> None:
    """Two pages ask for the same entries at once, while one is to be deleted."""
    found: list[str] = []

    def ask() -> None:
        found.extend(leases.use_of(three[0].folder) for _ in range(300))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    entry = listed(store, three[1])
    done = store.disk.delete(entry)
    for thread in threads:
        thread.join()
    assert done == "removed" and {*found} == {"free"}
