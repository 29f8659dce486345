"""What changes the store after a look-up: quarantine, deaths and successes; and lists of all entries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.store.entries import NOWHERE, die_while_loading, key, publish, quarantine, snapshot

from onegraph.common.reasons import (
    DiedWhileLoading,
    DigestDiffers,
    GraphNotFinite,
    UnreadableManifest,
    Unsigned,
)
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.integrity import Sound
from onegraph.graph_cache.lookup import Broken, Hit
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import Trusted


@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_was_published_since_stays(is_loaded: bool, store: Store) -> None:
    """Another process may have replaced what a look-up found damaged, or what this one loaded hours ago."""
    entry = publish(store, NOWHERE, content=b"first")
    if is_loaded:
        found: object = Broken.of(entry, GraphNotFinite())
    else:
        (entry.folder / "graph.aoti").write_bytes(b"f1rst")
        found = store.find(key())
    quarantine(store, entry.folder)
    newer = publish(store, NOWHERE, content=b"second")
    assert isinstance(found, Broken) and store.quarantine(found)
    assert store.find(key()) == Hit(newer)


@pytest.mark.parametrize(("file", "spoilt"), [("graph.aoti", b"c0de"), ("manifest.json", b"{")])
def test_what_is_whole_again_stays(file: str, spoilt: bytes, store: Store, entry: Entry) -> None:
    """A copy of the same graph has the very same manifest."""
    whole = (entry.folder / file).read_bytes()
    (entry.folder / file).write_bytes(spoilt)
    found = store.find(key())
    (entry.folder / file).write_bytes(whole)
    assert isinstance(found, Broken) and store.quarantine(found)
    assert store.find(key()) == Hit(entry)


def test_a_graph_survives_one_unlucky_kill(store: Store, entry: Entry) -> None:
    assert not store.markers.note_death(entry.folder) and not store.markers.died_once_while_loading(entry.folder)
    with store.markers.loading(entry.folder):  # this process is alive and knows what it does
        assert store.find(key()) == Hit(entry)
    die_while_loading(store, entry)
    before = snapshot(store.home)
    assert store.find(key()) == Hit(entry) and store.markers.died_once_while_loading(entry.folder)
    assert snapshot(store.home) == before  # a look-up counts nothing
    assert store.markers.note_death(entry.folder)
    assert not store.markers.note_death(entry.folder)
    assert store.find(key()) == Hit(entry)
    die_while_loading(store, entry)
    found = store.find(key())
    assert found == store.find(key()) == Broken(entry.folder, DiedWhileLoading())  # until it is quarantined
    assert found.reason.text == (
        "the cached graph was quarantined, because the process that loaded it last died meanwhile"
    )


def test_a_success_forgets_a_death(store: Store, entry: Entry) -> None:
    for _ in range(3):
        die_while_loading(store, entry)
        store.markers.note_death(entry.folder)
        assert store.find(key()) == Hit(entry)
        store.markers.clear_loading(entry.folder)


def test_the_next_entry_is_judged_by_itself(store: Store, entry: Entry) -> None:
    """What died with the entry before does not count against the one that takes its folder."""
    for _ in range(2):
        die_while_loading(store, entry)
        store.markers.note_death(entry.folder)
    found = store.find(key())
    assert isinstance(found, Broken) and store.quarantine(found)
    again = publish(store, NOWHERE)
    assert again.folder == entry.folder and store.find(key()) == Hit(again)


def test_every_entry_and_copy_is_checked(store: Store, checkpoint: ModelSource, models: Path) -> None:
    entries = [publish(store, checkpoint, key(dtype=dtype)) for dtype in ("a", "b", "c", "d")]
    copies = [models / "photo.graphs" / "0123456789ab" / "unet" / entry.folder.name for entry in entries]
    (entries[1].folder / "graph.aoti").write_bytes(b"c0de")
    (entries[2].folder / "manifest.json").write_text("{")
    (copies[3] / "signature.json").unlink()
    found = dict(store.check_all([models]))
    assert isinstance(found.pop(entries[2].folder), UnreadableManifest)
    assert found.pop(entries[1].folder) == DigestDiffers("graph.aoti")
    assert found.pop(copies[3]) == store.check(copies[3]) == Unsigned()
    assert found == dict.fromkeys([entries[0].folder, entries[3].folder, *copies[:3]], Sound())
    assert [*store.entries()] == [entries[0], entries[1], entries[3]]
    assert [store.signer.provenance(entry) for entry in store.entries()] == 3 * [Trusted()]


def test_one_bad_folder_hides_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = publish(store, NOWHERE)
    lost = publish(store, NOWHERE, key(component="vae_decoder")).folder.parent
    really = os.listdir

    def fails(path: Path) -> list[str]:
        if path == lost:
            raise OSError(5, "Input/output error")
        return really(path)

    monkeypatch.setattr(os, "listdir", fails)
    assert [*store.entries()] == [entry]
