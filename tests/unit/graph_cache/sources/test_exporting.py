"""Exporting: what this user may load, each graph once, signed, as a file or a folder that others can use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.store.bundles import contents, graphs
from support.store.entries import bake, key, new_entry, publish, quarantine, snapshot
from support.windows.absent import needs_posix

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources import exporting
from onegraph.graph_cache.sources.source import Transfer
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import ed25519, key_file

PRIVATE = 32 * b"k"


def export(store: Store, target: Path, *entries: Entry) -> list[Transfer]:
    return list(exporting.export(store, entries, target, PRIVATE))


def done(folder: Path, why: reasons.Reason | None = None) -> Transfer:
    return Transfer(str(folder), "exported" if why is None else "left out", reason=why)


@pytest.fixture(params=["x.tar", "baked"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def test_a_bundle_holds_what_the_manifests_name(
    store: Store, entry: Entry, checkpoint: ModelSource, target: Path
) -> None:
    """No first-use result, which is this machine's, and no signature by this user's secret key."""
    store.remember(entry, FirstUse(eager_ms=1.0))
    (entry.folder / "notes.txt").write_text("private")
    store.note_use(entry, "compiled", checkpoint)
    before = snapshot(entry.folder)
    bake(store, target, entry)
    place, found = f"0123456789ab/unet/{entry.folder.name}", contents(target)
    files = {*entry.manifest.files, "manifest.json", "publisher.json"}
    assert set(found) == {"bundle.json", *(f"{place}/{file}" for file in files)}
    assert graphs(found) == [place]
    assert found[f"{place}/manifest.json"] == entry.text
    assert found[f"{place}/graph.aoti"] == b"code"
    assert snapshot(entry.folder) == before
    assert not list(target.parent.rglob(".writing-*")) and not list(target.parent.glob(".x*"))


@pytest.fixture
def copy(models: Path, entry: Entry) -> Entry:
    """The copy beside the checkpoint."""
    (folder,) = (models / "photo.graphs" / "0123456789ab" / "unet").iterdir()
    return Entry(folder, entry.manifest, entry.text)


def test_one_file_for_each_graph(store: Store, entry: Entry, copy: Entry, tmp_path: Path) -> None:
    """A copy is the same graph, and goes where the graph itself is damaged."""
    assert export(store, tmp_path / "x.tar", entry, copy) == [done(entry.folder)]
    assert len(graphs(contents(tmp_path / "x.tar"))) == 1
    (entry.folder / "graph.aoti").unlink()
    missing = reasons.MissingFile("graph.aoti")
    assert export(store, tmp_path / "y.tar", entry, copy) == [done(entry.folder, missing), done(copy.folder)]


def test_the_first_of_two_graphs_of_a_key(store: Store, entry: Entry, target: Path, tmp_path: Path) -> None:
    second = Store(tmp_path / "second")
    second.home.mkdir()
    shutil.copy(store.home / "signing.key", second.home)
    other = publish(second, ModelSource(None, "aaaaaaaaaaaa"), content=b"other")
    why = reasons.TargetExists(entry.folder.name)
    assert export(store, target, entry, other) == [done(entry.folder), done(other.folder, why)]
    assert [data for file, data in contents(target).items() if file.endswith("graph.aoti")] == [b"code"]


def test_what_no_bundle_could_list_is_left_out(store: Store, entry: Entry, tmp_path: Path) -> None:
    for place in ("My Model/unet/x", "aaaa/unet/.broken-x"):
        shutil.copytree(entry.folder, tmp_path / "baked" / place)
        (tmp_path / "baked" / place / "publisher.json").write_text("{}")
    bake(store, tmp_path / "baked", entry)
    assert graphs(contents(tmp_path / "baked")) == [f"unknown/unet/{entry.folder.name}"]


def test_what_is_not_loaded_is_not_exported(store: Store, entry: Entry, target: Path) -> None:
    damaged = publish(store, ModelSource(None, "aaaaaaaaaaaa"), key(dtype="a"))
    unsigned = publish(store, ModelSource(None, "bbbbbbbbbbbb"), key(dtype="b"))
    odd = publish(store, ModelSource(None, "cccccccccccc"), key(dtype="a b"))
    (damaged.folder / "graph.aoti").write_bytes(b"c0de")
    (unsigned.folder / "signature.json").unlink()
    left_out = [
        done(damaged.folder, reasons.DigestDiffers("graph.aoti")),
        done(unsigned.folder, reasons.Unsigned()),
        done(odd.folder, reasons.UnreadableManifest("its key names no folder")),
    ]
    before = sorted(target.parent.iterdir())
    assert export(store, target, damaged, unsigned, odd) == left_out
    assert sorted(path for path in target.parent.iterdir() if path.name != "baked") == before  # no file without a graph
    assert [path for path in target.rglob("*") if not path.is_dir()] == []
    assert export(store, target, damaged, unsigned, odd, entry) == [*left_out, done(entry.folder)]
    assert len(graphs(contents(target))) == 1


def test_a_folder_is_added_to(store: Store, entry: Entry, tmp_path: Path) -> None:
    other = publish(store, ModelSource(None, "aaaaaaaaaaaa"), key(dtype="float16"))
    for made in (entry, other):
        bake(store, tmp_path / "baked", made)
    assert len(graphs(contents(tmp_path / "baked"))) == 2


def test_copies_are_signed_where_they_lie(store: Store, copy: Entry, checkpoint: ModelSource, models: Path) -> None:
    """An export to their own folder adds a signature, and takes nothing away."""
    before = snapshot(*copy.folder.iterdir())
    bake(store, models / "photo.graphs", copy)
    after = snapshot(*copy.folder.iterdir())
    assert after.keys() - before.keys() == {str(copy.folder / "publisher.json")}
    assert after.items() >= before.items()


def test_an_own_copy_is_never_replaced(store: Store, copy: Entry, models: Path, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    theirs = publish(other, ModelSource(None, "0123456789ab"), content=b"theirs")
    other.note_use(theirs, "compiled", ModelSource(None, "0123456789ab"))
    before = snapshot(copy.folder)
    why = reasons.TargetExists(copy.folder.name)
    assert export(other, models / "photo.graphs", theirs) == [done(theirs.folder, why)]
    assert snapshot(copy.folder) == before


def test_a_full_disk_leaves_no_file(
    store: Store, entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        export(store, tmp_path / "x.tar", entry)
    assert sorted(tmp_path.iterdir()) == before


@needs_posix("names are short on Windows")
def test_a_name_too_long_for_a_file(store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    long = publish(store, checkpoint, key(target={"device": 120 * "x"}), new=new_entry("x"))
    with pytest.raises(OSError, match="name is too long"):
        export(store, tmp_path / "x.tar", long)
    assert not (tmp_path / "x.tar").exists()


def test_one_user_may_publish_under_several_names(tmp_path: Path) -> None:
    assert exporting.key_path(tmp_path) == tmp_path / "publisher.key"
    assert exporting.key_path(tmp_path, "ci") == tmp_path / "publisher-ci.key"
    for name in ("../x", "a/b", 65 * "x", " "):
        assert exporting.key_path(tmp_path, name) == reasons.BadPublisherName(name)
    private = key_file.obtain(tmp_path / "home" / "publisher.key")
    assert len(private) == 32
    assert os.name != "posix" or (tmp_path / "home" / "publisher.key").stat().st_mode & 0o777 == 0o600
    assert exporting.public_key(tmp_path / "home" / "publisher.key") == ed25519.public_key(private)


def test_entries_are_found_from_any_folder(store: Store, entry: Entry, copy: Entry, models: Path) -> None:
    quarantine(store, publish(store, ModelSource(None, "bbbbbbbbbbbb"), key(dtype="b")).folder)
    for folder in (models, models / "photo.graphs", copy.folder.parents[1], copy.folder.parent, copy.folder):
        assert [found.folder for found in exporting.find(folder)] == [copy.folder]
    for folder in (store.home, store.graphs):
        assert [found.folder for found in exporting.find(folder)] == [entry.folder]
