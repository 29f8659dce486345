"""Folders of graphs that others may write: what is taken from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import key, publish, quarantine, snapshot

from onegraph.common import reasons
from onegraph.graph_cache import integrity
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.lookup import Broken, Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.folder import FolderSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import KEY_FILE

MODEL = "0123456789ab"


def test_a_copy_beside_the_checkpoint_is_taken_once(
    store: Store, checkpoint: ModelSource, entry: Entry, beside: Path
) -> None:
    before = snapshot(beside)
    found = store.lookup(key(), checkpoint)
    assert isinstance(found, Hit) and isinstance(found.source, FolderSource)
    assert (found.source.folder, found.entry.folder) == (beside.parents[1], beside)
    assert store.find(key()) == Miss(reasons.NoGraph())
    taken = store.take(key(), checkpoint)
    assert isinstance(taken, Taken) and (taken.entry, taken.graph) == (entry, None)
    assert store.find(key()) == store.lookup(key(), checkpoint) == Hit(entry)
    assert snapshot(beside) == before and not list(store.home.rglob("unet/.*"))


def test_copies_of_other_models_and_folders_are_taken_too(
    store: Store, tuned: ModelSource, entry: Entry, beside: Path, models: Path, tmp_path: Path
) -> None:
    elsewhere = ModelSource(tmp_path / "elsewhere" / "tuned.safetensors", "fedcba987654")
    assert isinstance(store.lookup(key(), elsewhere), Miss) and store.take(key(), elsewhere) is None
    for source_, neighbours in ((tuned, []), (elsewhere, [models]), (ModelSource(None, "aaaaaaaaaaaa"), [models])):
        assert isinstance(store.lookup(key(), source_, neighbours), Hit)
        taken = store.take(key(), source_, neighbours)
        assert isinstance(taken, Taken) and taken.entry == entry
        shutil.rmtree(entry.folder)


Spoil = Callable[[Store, Path], object]


def of_another_key(store: Store, copy: Path) -> None:
    shutil.rmtree(copy)
    other = publish(store, ModelSource(None, MODEL), key(architecture="bb"))
    other.folder.rename(copy)


REFUSED: dict[str, tuple[Spoil, reasons.Reason | None]] = {
    "damaged": (
        lambda store, copy: (copy / "graph.aoti").write_bytes(b"c0de"), reasons.DigestDiffers("graph.aoti")
    ),
    "changed manifest": (
        lambda store, copy: (copy / "manifest.json").write_bytes((copy / "manifest.json").read_bytes() + b" "),
        reasons.WrongSignature(),
    ),
    "unsigned": (lambda store, copy: (copy / "signature.json").unlink(), reasons.Unsigned()),
    "another's": (
        lambda store, copy: (store.home / KEY_FILE).write_bytes(32 * b"x"), reasons.WrongSignature()
    ),
    "half written": (
        lambda store, copy: (copy / "manifest.json").write_bytes((copy / "manifest.json").read_bytes()[:100]), None
    ),
    "of another key": (of_another_key, None),
    "hidden": (lambda store, copy: copy.rename(copy.with_name(f".broken-{copy.name}")), None),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_copy_that_is_refused(name: str, store: Store, checkpoint: ModelSource, beside: Path) -> None:
    spoil, why = REFUSED[name]
    spoil(store, beside)
    before = snapshot(beside.parent)
    taken = store.take(key(), checkpoint)
    assert taken == why or (name == "half written" and isinstance(taken, reasons.UnreadableManifest))
    assert store.find(key()) == Miss(reasons.NoGraph())
    assert snapshot(beside.parent) == before
    assert [*(store.home / ".staging").iterdir()] == []


def test_a_graph_that_was_quarantined_here_is_not_taken_again(
    store: Store, checkpoint: ModelSource, entry: Entry, location: Path
) -> None:
    """By its files, whatever its name. Another graph of the key is taken, and damage condemns no graph."""
    shutil.copytree(entry.folder, location / "unet" / f"x-{key().digest}")
    quarantine(store, entry.folder)
    assert store.lookup(key(), checkpoint) == Miss(reasons.NoGraph())
    assert store.take(key(), checkpoint) is None
    another = publish(store, checkpoint, content=b"another")
    assert another.folder == entry.folder
    (another.folder / "graph.aoti").write_bytes(b"an0ther")
    found = store.find(key())
    assert isinstance(found, Broken) and store.quarantine(found)
    taken = store.take(key(), checkpoint)
    assert isinstance(taken, Taken) and taken.entry == another


def test_a_copy_that_changes_while_it_is_copied_is_refused(
    store: Store, checkpoint: ModelSource, entry: Entry, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = integrity.is_same

    def swapped(*args: object) -> bool:
        (beside / "graph.aoti").write_bytes(b"c0de")  # while it is open
        return really(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(integrity, "is_same", swapped)
    assert store.take(key(), checkpoint) == reasons.DigestDiffers("graph.aoti")
    assert not list(store.home.rglob("graph.aoti"))


def test_keys_are_read_from_the_home_and_then_from_copies(
    store: Store, checkpoint: ModelSource, tuned: ModelSource
) -> None:
    here, there = key(), key(architecture="bb")
    shutil.rmtree(publish(store, checkpoint, there).folder)
    publish(store, tuned, here)
    assert store.keys("unet", ["aa"], checkpoint) == [here.fields()]
    assert store.keys("unet", ["aa", "bb"], checkpoint) == [here.fields(), there.fields()]
    assert store.keys("unet", ["cc"], checkpoint) == store.keys("vae_decoder", ["aa"], checkpoint) == []
