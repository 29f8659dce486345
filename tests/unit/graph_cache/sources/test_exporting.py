"""Exporting: what this user may load, each graph once, signed, as a file or a folder that others can use."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support.store.bundles import contents, graphs
from support.store.entries import bake, key, new_entry, publish, quarantine, snapshot

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources import exporting
from onegraph.graph_cache.sources.exporting import Exported
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import ed25519, key_file

PRIVATE = 32 * b"k"


def export(store: Store, target: Path, *entries: Entry) -> list[Exported]:
    return list(exporting.export(store, entries, target, PRIVATE))


def files_of(entry: Entry) -> set[str]:
    return {*entry.manifest.files, "manifest.json", "publisher.json"}


@pytest.mark.parametrize("name", ["x.tar", "baked"])
def test_a_bundle_holds_what_the_manifests_name(
    name: str, store: Store, entry: Entry, checkpoint: ModelSource, tmp_path: Path
) -> None:
    """No first-use result, which is this machine's, and no signature by this user's secret key."""
    store.remember(entry, FirstUse(eager_ms=1.0))
    (entry.folder / "notes.txt").write_text("private")
    store.note_use(entry, "compiled", checkpoint)
    before = snapshot(entry.folder)
    bake(store, tmp_path / name, entry)
    place = f"0123456789ab/unet/{entry.folder.name}"
    if name.endswith(".tar"):
        found = contents(tmp_path / name)
    else:
        paths = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        found = {path.relative_to(tmp_path / name).as_posix(): path.read_bytes() for path in paths}
    assert set(found) == {"bundle.json", *(f"{place}/{file}" for file in files_of(entry))}
    assert graphs(found) == [place]
    assert found[f"{place}/manifest.json"] == entry.text
    assert found[f"{place}/graph.aoti"] == b"code"
    assert snapshot(entry.folder) == before
    assert not list(tmp_path.rglob(".writing-*")) and not list(tmp_path.glob(".x*"))


@pytest.fixture
def copy(models: Path, entry: Entry) -> Entry:
    """The copy beside the checkpoint."""
    (folder,) = (models / "photo.graphs" / "0123456789ab" / "unet").iterdir()
    return Entry(folder, entry.manifest, entry.text)


def test_one_file_for_each_graph(store: Store, entry: Entry, copy: Entry, tmp_path: Path) -> None:
    """A copy is the same graph, and goes where the graph itself is damaged."""
    assert export(store, tmp_path / "x.tar", entry, copy) == [Exported(entry.folder)]
    assert len(graphs(contents(tmp_path / "x.tar"))) == 1
    (entry.folder / "graph.aoti").unlink()
    missing = reasons.MissingFile("graph.aoti")
    assert export(store, tmp_path / "y.tar", entry, copy) == [Exported(entry.folder, missing), Exported(copy.folder)]


@pytest.mark.parametrize("name", ["x.tar", "baked"])
def test_the_first_of_two_graphs_of_a_key(name: str, store: Store, entry: Entry, tmp_path: Path) -> None:
    second = Store(tmp_path / "second")
    (second.home).mkdir()
    shutil.copy(store.home / "signing.key", second.home)
    other = publish(second, ModelSource(None, "aaaaaaaaaaaa"), content=b"other")
    why = reasons.TargetExists(entry.folder.name)
    assert export(store, tmp_path / name, entry, other) == [Exported(entry.folder), Exported(other.folder, why)]
    bundle = contents(tmp_path / name) if name == "x.tar" else {}
    found = [data for file, data in bundle.items() if file.endswith("graph.aoti")]
    found += [path.read_bytes() for path in (tmp_path / name).rglob("graph.aoti")]
    assert found == [b"code"]


def test_what_no_bundle_could_list_is_left_out(store: Store, entry: Entry, tmp_path: Path) -> None:
    for place in ("My Model/unet/x", "aaaa/unet/.broken-x"):
        shutil.copytree(entry.folder, tmp_path / "baked" / place)
        (tmp_path / "baked" / place / "publisher.json").write_text("{}")
    bake(store, tmp_path / "baked", entry)
    (listed,) = json.loads((tmp_path / "baked" / "bundle.json").read_text())["graphs"]
    assert listed == f"unknown/unet/{entry.folder.name}"


@pytest.mark.parametrize("name", ["x.tar", "baked"])
def test_what_is_not_loaded_is_not_exported(name: str, store: Store, entry: Entry, tmp_path: Path) -> None:
    damaged = publish(store, ModelSource(None, "aaaaaaaaaaaa"), key(dtype="a"))
    unsigned = publish(store, ModelSource(None, "bbbbbbbbbbbb"), key(dtype="b"))
    (damaged.folder / "graph.aoti").write_bytes(b"c0de")
    (unsigned.folder / "signature.json").unlink()
    assert export(store, tmp_path / name, damaged, unsigned, entry) == [
        Exported(damaged.folder, reasons.DigestDiffers("graph.aoti")),
        Exported(unsigned.folder, reasons.Unsigned()),
        Exported(entry.folder),
    ]
    if name == "x.tar":
        assert len(graphs(contents(tmp_path / name))) == 1
    else:
        assert len(list((tmp_path / name).rglob("manifest.json"))) == 1


@pytest.mark.parametrize("name", ["x.tar", "baked"])
def test_nothing_to_export_leaves_no_file(name: str, store: Store, entry: Entry, tmp_path: Path) -> None:
    (entry.folder / "signature.json").unlink()
    before = sorted(path for path in tmp_path.iterdir())
    assert export(store, tmp_path / name, entry) == [Exported(entry.folder, reasons.Unsigned())]
    assert sorted(path for path in tmp_path.iterdir() if path.name != "baked") == before
    assert not list(tmp_path.glob("baked/*"))


def test_a_folder_is_added_to(store: Store, entry: Entry, tmp_path: Path) -> None:
    other = publish(store, ModelSource(None, "aaaaaaaaaaaa"), key(dtype="float16"))
    bake(store, tmp_path / "baked", entry)
    before = snapshot(tmp_path / "baked" / "unknown" / "unet" / entry.folder.name)
    bake(store, tmp_path / "baked", entry, other)
    assert len(json.loads((tmp_path / "baked" / "bundle.json").read_text())["graphs"]) == 2
    assert snapshot(tmp_path / "baked" / "unknown" / "unet" / entry.folder.name) == before  # the same, not again


def test_a_newer_graph_takes_the_older_ones_place(
    store: Store, entry: Entry, checkpoint: ModelSource, tmp_path: Path
) -> None:
    bake(store, tmp_path / "baked", entry)
    quarantine(store, entry.folder)
    newer = publish(store, checkpoint, content=b"newer")
    bake(store, tmp_path / "baked", newer)
    (manifest,) = (tmp_path / "baked").rglob("manifest.json")
    assert manifest.read_bytes() == newer.text
    assert (manifest.parent / "graph.aoti").read_bytes() == b"newer"
    assert not list((tmp_path / "baked").rglob(".writing-*"))


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
    assert export(other, models / "photo.graphs", theirs) == [Exported(theirs.folder, why)]
    assert snapshot(copy.folder) == before


def test_others_can_read_a_folder(store: Store, entry: Entry, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        bake(store, tmp_path / "baked", entry)
    finally:
        os.umask(before)
    found = [tmp_path / "baked", *(tmp_path / "baked").rglob("*")]
    modes = {path.is_dir(): set() for path in found}
    for path in found:
        modes[path.is_dir()].add(path.stat().st_mode & 0o777)
    assert modes == {True: {0o755}, False: {0o644}}


def test_a_full_disk_leaves_no_file(
    store: Store, entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        export(store, tmp_path / "x.tar", entry)
    assert sorted(tmp_path.iterdir()) == before


def test_a_key_whose_names_lead_elsewhere(store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    odd = publish(store, checkpoint, key(dtype="a b"))
    assert export(store, tmp_path / "x.tar", odd) == [
        Exported(odd.folder, reasons.UnreadableManifest("its key names no folder"))
    ]


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


def test_a_publishers_key_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "home" / "publisher.key"
    assert exporting.public_key(path) is None
    private = key_file.obtain(path)
    assert (path.stat().st_mode & 0o777, len(private)) == (0o600, 32)
    assert exporting.public_key(path) == ed25519.public_key(private)
    path.chmod(0o644)
    assert exporting.public_key(path) == reasons.SigningKeyRefused("open", "publisher.key")
    with pytest.raises(OSError, match="read or write it; close it with `chmod 600`, or remove it, and the next export"):
        key_file.obtain(path)


def test_entries_are_found_from_any_folder(store: Store, entry: Entry, copy: Entry, models: Path) -> None:
    quarantine(store, publish(store, ModelSource(None, "bbbbbbbbbbbb"), key(dtype="b")).folder)
    for folder in (models, models / "photo.graphs", copy.folder.parents[1], copy.folder.parent, copy.folder):
        assert [found.folder for found in exporting.find(folder)] == [copy.folder]
    for folder in (store.home, store.graphs):
        assert [found.folder for found in exporting.find(folder)] == [entry.folder]
