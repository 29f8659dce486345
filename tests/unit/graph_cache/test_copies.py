"""Copies beside checkpoints: whole, readable by others, and never through a link of another user's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import bake, key, publish, quarantine, snapshot, trust
from support.store.users import OTHER, as_root

from onegraph.common import reasons
from onegraph.graph_cache import copies
from onegraph.graph_cache.copies import remove_copy, write_copy
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store

MODEL = "0123456789ab"


GIVE: dict[str, Callable[[Store, Entry, Path], object]] = {  # by the signature that the copy has
    "signature.json": lambda store, entry, root: store.save(entry, root / MODEL),
    "publisher.json": lambda store, entry, root: bake(store, root, entry),
}


@pytest.mark.parametrize("signed", GIVE)
def test_what_is_given_is_whole_readable_and_the_newest(
    signed: str, store: Store, entry: Entry, checkpoint: ModelSource, tmp_path: Path
) -> None:
    """Others may read it whatever the umask. It is not written again, but for a newer graph."""
    give, root = GIVE[signed], tmp_path / "given"
    store.remember(entry, store.first_use(entry))
    before = os.umask(0o077)
    try:
        give(store, entry, root)
    finally:
        os.umask(before)
    copy = next(root.rglob("manifest.json")).parent
    assert {path.name for path in copy.iterdir()} == {"constants.json", "graph.aoti", "manifest.json", signed}
    for path in [root, *root.rglob("*")] if signed == "publisher.json" else [copy, *copy.iterdir()]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)
    found = snapshot(copy)
    give(store, entry, root)
    assert snapshot(copy) == found and [*copy.parent.iterdir()] == [copy]
    quarantine(store, entry.folder)
    newer = publish(store, checkpoint, content=b"newer")
    give(store, newer, root)
    assert (copy / "manifest.json").read_bytes() == newer.text
    assert (copy / "graph.aoti").read_bytes() == b"newer" and [*copy.parent.iterdir()] == [copy]


def test_a_damaged_graph_is_not_given_away(store: Store, entry: Entry, location: Path) -> None:
    (entry.folder / "graph.aoti").write_bytes(b"c0de")
    wrong = reasons.DigestDiffers("graph.aoti")
    assert write_copy(entry, location, store.signer) == wrong
    assert [*(location / "unet").iterdir()] == []
    with pytest.raises(OSError, match=r"graph\.aoti"):
        store.save(entry, location)


def test_another_users_copy_of_the_name_stays(
    store: Store, checkpoint: ModelSource, tmp_path: Path, entry: Entry, beside: Path
) -> None:
    """Neither touches the other's copy, and each finds the own one."""
    before, other = snapshot(beside), Store(tmp_path / "other")
    theirs = publish(other, checkpoint, content=b"theirs")
    copies = {path.name for path in beside.parent.iterdir()}
    assert copies == {beside.name, f"{beside.name}-{other.signer.sign(b'').key}"}
    shutil.rmtree(theirs.folder)
    for one, wanted in ((other, theirs), (store, entry)):
        taken = one.take(key(), checkpoint)
        assert isinstance(taken, Taken) and taken.entry == wanted
    assert snapshot(beside) == before


def test_a_publishers_copy_of_the_name_stays(
    store: Store, checkpoint: ModelSource, models: Path, tmp_path: Path
) -> None:
    """A baked store is never written, also by one who trusts it and has a graph of the same key."""
    baker = Store(tmp_path / "baker")
    trust(store, bake(baker, models / "photo.graphs", publish(baker, ModelSource(None, MODEL), content=b"baked")))
    (models / "photo.graphs" / "unknown").rename(models / "photo.graphs" / MODEL)
    (baked,) = (models / "photo.graphs" / MODEL / "unet").iterdir()
    before = snapshot(baked)
    publish(store, checkpoint, content=b"own")
    assert snapshot(baked) == before and len([*baked.parent.iterdir()]) == 2


def test_lost_keys_leave_two_copies(store: Store, checkpoint: ModelSource, beside: Path, tmp_path: Path) -> None:
    """As of a container whose home is lost at each start. What others made stays."""
    theirs = beside.with_name(f"{beside.name}-12345678")
    shutil.copytree(beside, theirs)
    if os.geteuid() == 0:
        os.chown(theirs, OTHER, OTHER)
    for number in range(3):
        start = Store(tmp_path / f"home {number}")
        assert start.take(key(), checkpoint) == reasons.WrongSignature()
        made = publish(start, checkpoint)
        copies = {path.name for path in beside.parent.iterdir()} - {theirs.name}
        assert copies == {beside.name, f"{beside.name}-{start.signer.sign(b'').key}"}
        shutil.rmtree(made.folder)
        assert isinstance(start.take(key(), checkpoint), Taken)
    assert theirs.exists() == (os.geteuid() == 0)


def test_what_an_interrupted_copy_left_goes_after_a_day(store: Store, entry: Entry, location: Path) -> None:
    old, new = location / "unet" / ".writing-old", location / "unet" / ".writing-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "graph.aoti").touch()
    os.utime(old, (0, 0))
    write_copy(entry, location, store.signer)
    assert not old.exists() and new.exists()


@pytest.mark.parametrize("part", ["tuned.graphs", "tuned.graphs/fedcba987654", "tuned.graphs/fedcba987654/unet"])
def test_an_own_link_is_followed(part: str, store: Store, entry: Entry, models: Path, location: Path) -> None:
    (models / "disk").mkdir()
    (models / part).parent.mkdir(parents=True, exist_ok=True)
    (models / part).symlink_to(models / "disk")
    copy = write_copy(entry, location, store.signer)
    assert isinstance(copy, Path) and copy.resolve().is_relative_to(models / "disk")


@as_root
def test_a_link_put_in_place_meanwhile_leads_nowhere(
    store: Store, entry: Entry, models: Path, location: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a member of the group that may write the models' folder, after the folder was opened."""
    (tmp_path / "own" / location.name / "unet").mkdir(parents=True)
    really = copies.put

    def exchanged(*args: object) -> object:
        (models / "tuned.graphs").rename(models / "moved")
        (models / "tuned.graphs").symlink_to(tmp_path / "own")
        return really(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(copies, "put", exchanged)
    write_copy(entry, location, store.signer)
    assert [*(tmp_path / "own").rglob("graph.aoti")] == []
    assert [path.parent.name for path in (models / "moved").rglob("graph.aoti")] == [entry.folder.name]


def test_a_copy_that_cannot_be_written_costs_no_graph(store: Store, checkpoint: ModelSource, models: Path) -> None:
    (models / "photo.graphs").write_text("no folder")
    entry = publish(store, checkpoint)
    assert store.find(key()) == Hit(entry)
    assert store.disk.folders() == []


def test_only_own_copies_are_removed(store: Store, entry: Entry, tmp_path: Path) -> None:
    location = tmp_path / "saved" / "unet.graphs" / MODEL
    theirs = publish(Store(tmp_path / "other"), ModelSource(None, MODEL), key(dtype="float16"))
    shutil.copytree(theirs.folder, location / "unet" / theirs.folder.name)
    copy = store.save(entry, location)
    assert {one.folder for one in store.saved(location.parents[1])} == {copy, location / "unet" / theirs.folder.name}
    for one in store.saved(location.parents[1]):
        remove_copy(one.folder, store.signer)
    assert [one.manifest for one in store.saved(location.parents[1])] == [theirs.manifest]
    shutil.rmtree(location)
    remove_copy(store.save(entry, location), store.signer)
    assert not location.parent.exists()  # nothing empty stays
