"""Lists of graphs: what they tell of each, and that only what has changed is read again, and then always."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import NOWHERE, publish, quarantine
from support.store.sized import BIG, listed, on_disk, usable

from onegraph.common.reasons import CheckpointGone, OlderManifest, Quarantined, UnreadableNow
from onegraph.graph_cache.disk import listing, marks, scan
from onegraph.graph_cache.disk.listing import Listed, bytes_below, bytes_on_disk
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import Signer


def test_a_list_counts_each_byte(store: Store, three: list[Entry]) -> None:
    there = store.disk.entries()
    assert [one.path for one in there] == sorted(entry.folder for entry in three)
    assert bytes_on_disk(there) == on_disk(store) == bytes_below(store.graphs) > 3 * BIG
    assert [(one.uses, one.pinned, one.in_use, one.unusable, one.beside) for one in there] == [
        (1, False, False, None, False)
    ] * 3
    assert len({one.id for one in there}) == 3


def test_a_graph_names_the_models_that_it_served(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, models: Path
) -> None:
    entry = publish(store, checkpoint, usable())
    assert (listed(store, entry).models, listed(store, entry).model) == ((), "unknown")
    for source in (checkpoint, tuned, checkpoint, NOWHERE):
        store.note_use(entry, "restored", source)
    one = listed(store, entry)
    assert one.models == (
        marks.Model("0123456789ab", str(models / "photo.graphs")),
        marks.Model("fedcba987654", str(models / "tuned.graphs")),
        marks.Model("0123456789ab", ""),
    )
    assert (one.model, one.uses) == ("photo/0123456789ab", 4)
    (entry.folder / ".models").write_bytes(b"\n\t\nfedcba987654\n\xff\xff\t\xff\n")  # by hand
    assert listed(store, entry).models[0] == marks.Model("fedcba987654", "")


def test_a_checkpoint_that_is_gone_makes_its_copies_useless_and_no_graph(
    store: Store, checkpoint: ModelSource, models: Path
) -> None:
    entry = publish(store, checkpoint, usable())
    store.note_use(entry, "compiled", checkpoint)
    (models / "photo.safetensors").unlink()
    assert [(one.beside, one.unusable) for one in store.disk.scan([models])] == [
        (False, None),
        (True, CheckpointGone("photo")),
    ]


def test_what_is_not_loaded_says_why(store: Store, three: list[Entry]) -> None:
    quarantine(store, three[0].folder)
    (three[1].folder / "signature.json").unlink()
    text = b'{"version": 1}'
    (three[2].folder / "manifest.json").write_bytes(text)
    (three[2].folder / "signature.json").write_text(Signer(store.home).sign(text).model_dump_json())
    found = {one.path.name: one for one in store.disk.entries()}
    assert [one.unusable for one in found.values() if one.quarantined] == [Quarantined()]
    assert found[three[1].folder.name].facts.code == "unsigned"
    assert isinstance(found[three[2].folder.name].unusable, OlderManifest)


def test_another_key_or_publisher_has_all_judged_anew(store: Store, three: list[Entry]) -> None:
    assert {one.facts.code for one in store.disk.entries()} == {""}
    (store.home / "signing.key").write_bytes(32 * b"x")
    found = store.disk.entries()
    assert {one.facts.code for one in found} == {"wrong_signature"}
    assert all(one.facts.label for one in found)  # what a stranger's manifest says is shown


def test_a_strangers_manifest_that_is_large_is_not_parsed(
    store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_MOST_OF_OTHERS", 10)
    (store.home / "signing.key").write_bytes(32 * b"x")
    assert {one.facts.label for one in store.disk.entries()} == {""}


def test_what_cannot_be_read_now_is_not_told_of(
    store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, passing = listing.read_trusted, UnreadableNow("manifest.json", "no memory")
    asked = lambda folder, signer: passing if folder == three[0].folder else read(folder, signer)  # noqa: E731
    monkeypatch.setattr(listing, "read_trusted", asked)
    assert {one.path for one in store.disk.entries()} == {three[1].folder, three[2].folder}


def test_files_that_go_while_they_are_counted_count_as_nothing(
    store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes quarantine entries and write first-use results meanwhile."""
    really = os.lstat

    def gone(path: str) -> os.stat_result:
        if str(path).endswith("graph.aoti"):
            raise FileNotFoundError(2, "No such file or directory")
        return really(path)

    monkeypatch.setattr(os, "lstat", gone)
    assert 0 < bytes_below(store.graphs) < BIG


# What has changed -------------------------------------------------------------------------------------------------


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes need not grow old before the clock is trusted."""
    monkeypatch.setattr(scan, "_UNSURE_NS", -(1 << 62))


Change = Callable[[Store, Entry, Path], object]
CHANGES: dict[str, Change] = {
    "another graph": lambda store, entry, models: publish(store, NOWHERE, usable(1)),
    "a copy beside another checkpoint": lambda store, entry, models: store.save(entry, models / "tuned.graphs" / "1"),
    "a graph that is gone": lambda store, entry, models: shutil.rmtree(entry.folder),
    "all graphs gone": lambda store, entry, models: shutil.rmtree(store.graphs),
    "all copies gone": lambda store, entry, models: shutil.rmtree(models / "photo.graphs"),
    "another model": lambda store, entry, models: marks.note_use(entry.folder, "compiled", NOWHERE),
    "quarantined": lambda store, entry, models: quarantine(store, entry.folder),
    "pinned": lambda store, entry, models: marks.pin(entry.folder),
    "a use": lambda store, entry, models: marks.note_use(entry.folder, "restored", NOWHERE),
    "no signature": lambda store, entry, models: (entry.folder / "signature.json").unlink(),
    "a checkpoint that is gone": lambda store, entry, models: (models / "photo.safetensors").unlink(),
}


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("is_used", [False, True])  # a later use changes one file, and no folder
def test_each_change_is_seen_and_nothing_else_is_read_anew(
    is_used: bool, change: Change, store: Store, checkpoint: ModelSource, models: Path
) -> None:
    entry = publish(store, checkpoint, usable())
    if is_used:
        marks.note_use(entry.folder, "restored", checkpoint)
    for path in [models, *models.rglob("*"), store.home, *store.home.rglob("*")]:
        os.utime(path, (1e9, 1e9))  # so that each change is another time, whatever the file system rounds
    before = store.disk.scan([models])
    assert store.disk.scan([models]) == before and store.disk.reads == 1
    change(store, entry, models)
    after = store.disk.scan([models])
    assert after == Store(store.home).disk.scan([models]) != before
    assert scan.revision(after) != scan.revision(before)


def test_what_has_just_changed_is_read_again(store: Store, entry: Entry) -> None:
    """A file system gives two changes one time where they are close to each other."""
    assert store.disk.entries() == store.disk.entries()
    assert store.disk.reads == 2


def test_other_folders_are_another_list(store: Store, entry: Entry, models: Path, tmp_path: Path) -> None:
    assert [one.beside for one in store.disk.scan([models])] == [False, True]
    assert store.disk.scan([tmp_path / "nothing"]) == store.disk.entries()
    assert [one.beside for one in store.disk.scan([models, models])] == [False, True]


def test_the_first_list_is_shown_as_far_as_it_is_read(
    store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = sorted(str(entry.folder) for entry in three)
    going_on = threading.Event()
    describe = listing.describe

    def slow(folder: str, *args: object) -> Listed | None:
        if folder in others:
            going_on.wait()
        return describe(folder, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(scan, "describe", slow)
    for seconds in (0.2, 0.0):
        found, is_whole = store.disk.scan_soon([], seconds)
        assert not is_whole and [one.folder for one in found] == [first]
    going_on.set()
    found, is_whole = store.disk.scan_soon([], 60)
    assert is_whole and [one.folder for one in found] == [first, *others]
    shutil.rmtree(first)
    found, is_whole = store.disk.scan_soon([], 0.0)
    assert is_whole and [one.folder for one in found] == others


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_first_list_that_failed_is_tried_again(
    store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(scan, "describe", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.disk.scan_soon([], 60)
    found, is_whole = store.disk.scan_soon([], 60)
    assert is_whole and len(found) == 3
