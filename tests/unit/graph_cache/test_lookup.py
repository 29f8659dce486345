"""Looking up: what is a hit, which reason a miss gives, and that the store stays as it is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import NOWHERE, die_while_loading, key, publish, rewrite, snapshot

from onegraph.common.reasons import (
    BadFileName,
    NoGraph,
    NotARegularFile,
    UnreadableManifest,
    VaeCopied,
    WrongSignature,
    WrongSize,
)
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.key import FORMAT, GraphKey
from onegraph.graph_cache.lookup import Broken, Hit, Miss, Unavailable
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store

TORCH_2_15 = {"device": "cpu", "cpu": "f00", "torch": "2.15"}


def test_a_published_graph_is_a_hit_for_every_model(
    store: Store, entry: Entry, checkpoint: ModelSource, tuned: ModelSource
) -> None:
    assert store.find(key()) == Hit(entry)
    for source in (checkpoint, tuned, NOWHERE):
        assert store.lookup(key(), source) == Hit(entry)
    assert Store(store.home).find(key()) == Hit(entry)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": "bb"}, ""),  # nothing is near a graph of another architecture
        ({"shapes": {"dims": {"h": [1, 2, 1]}}}, "shapes"),
        ({"dtype": "float16"}, "dtype float32 instead of float16"),
        ({"target": TORCH_2_15}, "target (torch 2.14 instead of 2.15)"),
        ({"format": 99}, f"format {FORMAT} instead of 99"),
    ],
)
@pytest.mark.usefixtures("entry")
def test_a_miss_tells_what_was_nearest(change: dict[str, object], reason: str, store: Store) -> None:
    missed = store.find(key(**change))
    assert missed == Miss(NoGraph(reason))
    assert not reason or missed.reason.text == f"the graphs cached for this model differ in {reason}"


def test_the_nearest_of_all_entries_is_told(store: Store) -> None:
    for number in range(3):
        publish(store, NOWHERE, key(shapes={"dims": {"height": [number]}}, dtype="float16"))
    near = publish(store, NOWHERE, key(shapes={}))
    torch = "target (torch 2.14 instead of 2.15)"
    assert store.find(key(target=TORCH_2_15)) == Miss(NoGraph(f"shapes, {torch}"))
    found = store.nearest(key(target=TORCH_2_15))
    assert found == near
    (near.folder / "manifest.json").write_bytes(near.text[:100])
    assert store.find(key(target=TORCH_2_15)) == Miss(NoGraph(f"dtype float16 instead of float32, shapes, {torch}"))


def test_an_empty_store_has_no_graph_and_is_not_made(store: Store, checkpoint: ModelSource, models: Path) -> None:
    assert store.find(key()) == store.lookup(key(), checkpoint, [models]) == Miss(NoGraph())
    assert NoGraph().text == "no graph is cached for this model yet"
    assert store.sibling(key()) is None and store.nearest(key()) is None and [*store.entries()] == []
    assert store.take(key(), checkpoint) is None
    assert not store.home.exists()
    assert [path.name for path in models.iterdir()] == ["photo.safetensors"]


def test_an_objection_to_the_entry_is_the_reason(store: Store, entry: Entry) -> None:
    asked = []
    found = store.find(key(), lambda manifest: asked.append(manifest) or VaeCopied())
    assert (found, asked) == (Miss(VaeCopied()), [entry.manifest])


def damaged(store: Store, entry: Entry) -> None:
    (entry.folder / "graph.aoti").write_bytes(b"")


def unreadable(store: Store, entry: Entry) -> None:
    (entry.folder / "manifest.json").write_text("{")


def sound(store: Store, entry: Entry) -> None:
    pass


def test_a_damaged_entry_is_broken(store: Store, checkpoint: ModelSource, entry: Entry) -> None:
    """Also where a source has a copy: the entry is quarantined first."""
    damaged(store, entry)
    wrong = Broken(entry.folder, WrongSize("graph.aoti", 0, 4))
    assert store.find(key()) == store.lookup(key(), checkpoint) == wrong
    unreadable(store, entry)
    found = store.find(key())
    assert isinstance(found, Broken) and isinstance(found.reason, UnreadableManifest)


def test_a_sound_entry_beside_a_broken_one_is_a_hit(store: Store, entry: Entry) -> None:
    bad = entry.folder.rename(entry.folder.with_name(f"a-{key().digest}"))
    (bad / "graph.aoti").write_bytes(b"")
    assert isinstance(store.find(key()), Broken)
    made = publish(store, NOWHERE)
    assert bad.exists() and store.find(key()) == Hit(made)


@pytest.mark.parametrize("change", [sound, damaged, unreadable, die_while_loading])
@pytest.mark.parametrize("wanted", [key(), key(architecture="bb")])
def test_a_lookup_changes_nothing(
    change: Callable[[Store, Entry], None],
    wanted: GraphKey,
    store: Store,
    entry: Entry,
    tuned: ModelSource,
    models: Path,
) -> None:
    change(store, entry)
    before = snapshot(models, store.home)
    for _ in range(2):
        store.find(wanted)
        store.lookup(wanted, tuned, [models])
        store.sibling(wanted)
        store.keys("unet", ["aa"], tuned, [models])
    assert snapshot(models, store.home) == before


def test_a_sibling_differs_in_its_shapes_alone(store: Store) -> None:
    publish(store, NOWHERE, key(shapes={"dims": {"height": 8}}, architecture="bb"))
    assert store.sibling(key()) is None
    other = publish(store, NOWHERE, key(shapes={"dims": {"height": 8}}))
    assert store.sibling(key()) == other
    assert store.sibling(key(), lambda manifest: VaeCopied()) is None
    (other.folder / "graph.aoti").write_bytes(b"damaged")
    assert store.sibling(key()) is None


# What cannot be read now ------------------------------------------------------------------------------------------


def unreadable_now(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one file of an entry fail to open, as with too many open files."""
    really = os.open

    def fails(path: Path, *args: int, **more: int) -> int:
        if Path(path) == folder / name:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return really(path, *args, **more)

    monkeypatch.setattr(os, "open", fails)


@pytest.mark.parametrize("name", ["graph.aoti", "manifest.json"])
def test_an_entry_that_cannot_be_read_now(
    name: str, store: Store, checkpoint: ModelSource, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        unreadable_now(entry.folder, name, patch)
        found = store.lookup(key(), checkpoint)
        assert isinstance(found, Unavailable)
        assert (found.folder, found.reason.file) == (entry.folder, name)
        assert store.sibling(key(shapes={})) is None
        nearest = "" if name == "manifest.json" else "dtype float32 instead of a"
        assert store.find(key(dtype="a")) == Miss(NoGraph(nearest))
    assert store.find(key()) == Hit(entry)


@pytest.mark.parametrize(("number", "kind"), [(errno.EMFILE, Unavailable), (errno.EACCES, Miss), (errno.ENOENT, Miss)])
def test_a_component_that_cannot_be_listed(
    number: int, kind: type, store: Store, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is closed to this user is as none; one that fails for now may hold the graph."""
    really = os.listdir

    def fails(path: Path) -> list[str]:
        if path == entry.folder.parent:
            raise OSError(number, os.strerror(number), str(path))
        return really(path)

    monkeypatch.setattr(os, "listdir", fails)
    assert isinstance(store.find(key()), kind)
    assert store.sibling(key()) is None and [*store.entries()] == []


# What is no file of an entry --------------------------------------------------------------------------------------


def test_a_pipe_never_holds_up_the_store(store: Store, entry: Entry) -> None:
    store.remember(entry, FirstUse(eager_ms=1.0))
    signature = (entry.folder / "signature.json").read_bytes()
    for path in entry.folder.iterdir():  # which nobody writes to
        path.unlink()
        os.mkfifo(path, 0o600)
    assert store.find(key()) == Miss(WrongSignature())
    (entry.folder / "signature.json").unlink()
    (entry.folder / "signature.json").write_bytes(signature)
    assert store.find(key()) == Broken(entry.folder, NotARegularFile("manifest.json"))
    assert store.sibling(key(shapes={})) is None
    assert [*store.entries()] == []
    assert dict(store.check_all()) == {entry.folder: NotARegularFile("manifest.json")}
    assert store.first_use(entry) == FirstUse()


def test_a_long_name_is_an_error_nowhere(store: Store, entry: Entry) -> None:
    files = {300 * "x": entry.manifest.files["graph.aoti"]}
    tampered = entry.manifest.model_copy(update={"files": files})
    rewrite(store, entry, tampered)
    bad = BadFileName(100 * "x")
    assert store.find(key()) == Broken(entry.folder, bad)
    assert store.sibling(key(shapes={})) is None
    assert [found.manifest for found in store.entries()] == [tampered]
    assert dict(store.check_all()) == {entry.folder: bad}
