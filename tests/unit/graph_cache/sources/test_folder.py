"""Folders of graphs that others may write: what is taken from them, and what is written there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import bake, key, publish, quarantine, snapshot, trust
from support.store.users import OTHER, as_root

from onegraph.common import reasons
from onegraph.graph_cache import integrity
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.lookup import Broken, Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources import folder as folders
from onegraph.graph_cache.sources.folder import FolderSource, remove_copy, write_copy
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import KEY_FILE

MODEL = "0123456789ab"


@pytest.fixture
def beside(models: Path, entry: Entry) -> Path:
    """The copy beside the checkpoint, of which the home has none any more."""
    shutil.rmtree(entry.folder)
    return models / "photo.graphs" / MODEL / "unet" / entry.folder.name


@pytest.fixture
def location(models: Path) -> Path:
    return models / "tuned.graphs" / "fedcba987654"


# Taking -----------------------------------------------------------------------------------------------------------


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


# Writing ----------------------------------------------------------------------------------------------------------


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
    really = folders.put

    def exchanged(*args: object) -> object:
        (models / "tuned.graphs").rename(models / "moved")
        (models / "tuned.graphs").symlink_to(tmp_path / "own")
        return really(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(folders, "put", exchanged)
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
