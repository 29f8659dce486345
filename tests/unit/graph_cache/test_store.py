"""The calls that change the store after a look-up: adopting and quarantining."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.store.entries import die_while_loading, key, publish, quarantine, snapshot

from onegraph.common.reasons import (
    DiedOnceWhileLoading,
    DiedWhileLoading,
    DigestDiffers,
    GraphNotFinite,
    NoGraph,
    UnreadableManifest,
    UnreadableNow,
)
from onegraph.graph_cache import first_use_results, staging
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.integrity import Sound
from onegraph.graph_cache.lookup import Broken, Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import trusted_entry


def test_an_adopted_entry_is_this_models(store: Store, checkpoint: ModelSource, tuned: ModelSource) -> None:
    entry = publish(store, checkpoint)
    store.remember(entry, FirstUse(checked={"n": 1e-6}))
    hit = store.lookup(key(), tuned)
    assert isinstance(hit, Hit)
    own = store.share_with_model(hit, key(), tuned)
    assert "tuned.graphs" in own.folder.parts
    assert (own.folder / "graph.aoti").samefile(entry.folder / "graph.aoti")  # a link, no second copy
    assert store.first_use(own).checked == {"n": 1e-6}
    assert store.lookup(key(), tuned) == Hit(own)
    assert store.lookup(key(), checkpoint) == Hit(entry)


def test_adopting_ones_own_entry_does_nothing(store: Store, checkpoint: ModelSource, models: Path) -> None:
    hit = Hit(publish(store, checkpoint))
    before = snapshot(models)
    assert store.share_with_model(hit, key(), checkpoint) == hit.entry
    assert snapshot(models) == before


def test_a_foreign_entry_serves_a_read_only_store(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = publish(store, checkpoint)

    @contextlib.contextmanager
    def full(locations: list[Path]) -> Iterator[Path]:
        raise OSError(28, "No space left on device")
        yield

    monkeypatch.setattr(staging, "staging", full)
    assert store.share_with_model(Hit(entry, foreign=True), key(), tuned) == entry


def test_a_quarantined_entry_is_never_found_again(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    quarantine(store, entry.folder)
    assert isinstance(store.lookup(key(), checkpoint), Miss)
    assert list(store.entries()) == []


def test_an_entry_published_after_the_judgement_stays(store: Store, checkpoint: ModelSource) -> None:
    """Another process may have replaced what a look-up found damaged before this one moves it aside."""
    entry = publish(store, checkpoint, content=b"first")
    (entry.folder / "graph.aoti").write_bytes(b"f1rst")
    found = store.lookup(key(), checkpoint)
    assert isinstance(found, Broken)
    quarantine(store, entry.folder)
    sound = publish(store, checkpoint, content=b"second")
    assert store.move_aside(found)
    assert store.lookup(key(), checkpoint) == Hit(sound)


def test_a_graph_loaded_earlier_condemns_no_newer_one(store: Store, checkpoint: ModelSource) -> None:
    """A process may find its graph wrong hours after another one quarantined it and published the next."""
    entry = publish(store, checkpoint, content=b"first")
    wrong = Broken.of(entry, GraphNotFinite())
    quarantine(store, entry.folder)
    newer = publish(store, checkpoint, content=b"second")
    store.quarantine(wrong)
    assert store.lookup(key(), checkpoint) == Hit(newer)


def test_a_damaged_copy_replaced_by_a_whole_one_stays(store: Store, checkpoint: ModelSource) -> None:
    """Adopted from another model, it has the very same manifest."""
    entry = publish(store, checkpoint)
    (entry.folder / "graph.aoti").write_bytes(b"c0de")
    found = store.lookup(key(), checkpoint)
    (entry.folder / "graph.aoti").write_bytes(b"code")
    assert isinstance(found, Broken) and store.move_aside(found)
    assert store.lookup(key(), checkpoint) == Hit(entry)


def test_an_unreadable_manifest_replaced_meanwhile_stays(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    (entry.folder / "manifest.json").write_text("{")
    found = store.lookup(key(), checkpoint)
    (entry.folder / "manifest.json").write_bytes(entry.text)
    assert isinstance(found, Broken) and store.move_aside(found)
    assert store.lookup(key(), checkpoint) == Hit(entry)


def test_only_own_entries_are_removed(store: Store, checkpoint: ModelSource) -> None:
    """`save_pipe(overwrite=True)` may be given a folder in which others' graphs lie, too."""
    mine, other = publish(store, checkpoint), publish(store, checkpoint, key(dtype="float16"))
    (other.folder / "signature.json").unlink()
    assert checkpoint.path is not None
    folder = checkpoint.path.parent
    assert {entry.folder for entry in store.saved(folder)} == {mine.folder, other.folder}
    for entry in store.saved(folder):
        store.remove(entry)
    assert [entry.folder for entry in store.saved(folder)] == [other.folder]


def test_the_latest_quarantined_entry_stays_on_disk(store: Store, checkpoint: ModelSource) -> None:
    for content in (b"first", b"second"):
        entry = publish(store, checkpoint, content=content)
        quarantine(store, entry.folder)
    (aside,) = entry.folder.parent.iterdir()
    assert (aside / "graph.aoti").read_bytes() == b"second"


def test_the_next_entry_is_judged_by_itself(store: Store, checkpoint: ModelSource) -> None:
    """What died with the entry before does not count against the one that takes its folder."""
    entry = publish(store, checkpoint)
    die_while_loading(store, entry)
    quarantine(store, entry.folder)
    assert isinstance(store.lookup(key(), checkpoint), Miss)
    again = publish(store, checkpoint)
    assert again.folder == entry.folder
    assert store.lookup(key(), checkpoint) == Hit(again)


def test_every_entry_is_checked(store: Store, checkpoint: ModelSource, models: Path) -> None:
    sound = publish(store, checkpoint)
    cut, bare = (publish(store, ModelSource(None, "aaaaaaaaaaaa"), key(dtype=dtype)) for dtype in ("a", "b"))
    (cut.folder / "graph.aoti").write_bytes(b"c0de")
    (bare.folder / "manifest.json").write_text("{")
    found = dict(store.check_all([models]))
    assert found.pop(sound.folder) == Sound()
    assert found.pop(cut.folder) == DigestDiffers("graph.aoti")
    assert isinstance(found.pop(bare.folder), UnreadableManifest)
    assert not found


def test_a_graph_survives_one_unlucky_kill(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    assert store.note_death(entry) is None
    die_while_loading(store, entry)
    before = snapshot(store.home, entry.folder)
    assert store.lookup(key(), checkpoint) == Hit(entry)
    assert snapshot(store.home, entry.folder) == before  # a look-up counts nothing
    assert store.note_death(entry) == DiedOnceWhileLoading()
    assert store.note_death(entry) is None
    assert store.lookup(key(), checkpoint) == Hit(entry)
    die_while_loading(store, entry)
    assert store.lookup(key(), checkpoint) == Broken(entry.folder, DiedWhileLoading())


def test_a_success_forgets_a_death(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    for _ in range(3):
        die_while_loading(store, entry)
        store.note_death(entry)
        assert store.lookup(key(), checkpoint) == Hit(entry)
        store.note_success(entry)


def test_quarantine_forgets_deaths(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    for _ in range(2):
        die_while_loading(store, entry)
        store.note_death(entry)
    assert isinstance(store.lookup(key(), checkpoint), Broken)
    quarantine(store, entry.folder)
    again = publish(store, checkpoint)
    assert store.lookup(key(), checkpoint) == Hit(again)


def adopted(store: Store, source: ModelSource) -> Entry:
    found = store.lookup(key(), source)
    assert isinstance(found, Hit)
    assert found.foreign
    return store.share_with_model(found, key(), source)


def test_what_was_quarantined_is_not_adopted_again(store: Store, checkpoint: ModelSource, tuned: ModelSource) -> None:
    entry = publish(store, checkpoint)
    quarantine(store, adopted(store, tuned).folder)
    assert store.lookup(key(), tuned) == Miss(NoGraph())
    assert store.lookup(key(), checkpoint) == Hit(entry)  # its own model judges it
    other = publish(store, ModelSource(None, "aaaaaaaaaaaa"), content=b"another")
    assert store.lookup(key(), tuned) == Hit(other, foreign=True)


def test_another_keys_quarantine_does_not_count(store: Store, checkpoint: ModelSource, tuned: ModelSource) -> None:
    entry = publish(store, checkpoint)
    quarantine(store, publish(store, tuned, key(dtype="float16")).folder)
    assert store.lookup(key(), tuned) == Hit(entry, foreign=True)


def test_a_copied_result_is_no_evidence(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After this model's own graph went wrong here, the next one is compared anew on this machine."""
    entry = publish(store, checkpoint)
    store.remember(entry, FirstUse(checked={"n": 1e-6}))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(first_use_results, "machine_id", lambda: "another")
        store.remember(entry, FirstUse(checked={"n": 2e-6}))
    quarantine(store, publish(store, tuned, content=b"own").folder)
    own = adopted(store, tuned)
    assert store.first_use(own) == FirstUse()
    assert set(first_use_results.read_all(own.folder).machines) == {"another"}
    assert store.first_use(entry).checked == {"n": 1e-6}


def test_an_entry_unreadable_now_is_not_replaced(
    store: Store, checkpoint: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = publish(store, checkpoint)
    really = trusted_entry.read_text

    def unreadable(folder: Path) -> object:
        return UnreadableNow("manifest.json", "too many open files") if folder == entry.folder else really(folder)

    with monkeypatch.context() as patch:
        patch.setattr(trusted_entry, "read_text", unreadable)
        another = publish(store, checkpoint, content=b"another")
    assert another.folder.is_relative_to(store.home)
    assert store.lookup(key(), checkpoint) == Hit(entry)


def test_one_bad_folder_hides_no_other(store: Store, checkpoint: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = publish(store, checkpoint)
    lost = publish(store, ModelSource(None, "aaaaaaaaaaaa")).folder.parent
    really = os.listdir

    def fails(path: Path) -> list[str]:
        if path == lost:
            raise OSError(5, "Input/output error")
        return really(path)

    monkeypatch.setattr(os, "listdir", fails)
    assert checkpoint.path is not None
    assert list(store.entries([checkpoint.path.parent])) == [entry]
