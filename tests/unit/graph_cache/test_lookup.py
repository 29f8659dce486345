"""Looking up: what is a hit, which reason a miss gives, and that the store stays as it is."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import die_while_loading, key, publish, rewrite, snapshot

from onegraph.common.reasons import (
    BadFileName,
    DiedWhileLoading,
    NoGraph,
    NotARegularFile,
    OtherKey,
    UnreadableManifest,
    UnreadableNow,
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


def test_a_published_graph_is_a_hit(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    assert store.lookup(key(), checkpoint) == Hit(entry, foreign=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": "bb"}, "architecture"),
        ({"shapes": {"dims": {"h": [1, 2, 1]}}}, "shapes"),
        ({"dtype": "float16"}, "dtype float32 instead of float16"),
        ({"target": {"device": "cpu", "cpu": "f00", "torch": "2.15"}}, "target (torch 2.14 instead of 2.15)"),
        ({"format": 99}, f"format {FORMAT} instead of 99"),
    ],
)
def test_a_miss_tells_what_was_nearest(
    change: dict[str, object], reason: str, store: Store, checkpoint: ModelSource
) -> None:
    publish(store, checkpoint)
    missed = store.lookup(key(**change), checkpoint)
    assert missed == Miss(NoGraph(reason))
    assert missed.reason.text == f"the graphs cached for this model differ in {reason}"


def test_the_nearest_of_all_entries_is_told(store: Store, checkpoint: ModelSource, tuned: ModelSource) -> None:
    missed = key(target={"device": "cpu", "cpu": "f00", "torch": "2.15"})
    far, near = "target (torch 2.14 instead of 2.15)", publish(store, tuned, key(shapes={}))
    for number in range(3):
        publish(store, checkpoint, key(shapes={"dims": {"height": [number]}}, architecture=f"{number}"))
    assert store.lookup(missed, checkpoint) == Miss(NoGraph(f"architecture, shapes, {far}"))
    copied = near.folder.rename(store.locations(checkpoint)[0] / "unet" / "copy")
    assert store.lookup(missed, checkpoint) == Miss(NoGraph(f"shapes, {far}"))
    (copied / "manifest.json").write_bytes(near.text[:100])  # as while somebody copies it
    assert store.lookup(missed, checkpoint) == Miss(NoGraph(f"architecture, shapes, {far}"))


def test_an_empty_store_has_no_graph(store: Store, checkpoint: ModelSource) -> None:
    assert store.lookup(key(), checkpoint) == Miss(NoGraph())
    assert NoGraph().text == "no graph is cached for this model yet"


def test_only_the_manifest_decides(store: Store, checkpoint: ModelSource) -> None:
    """A folder renamed to look like another key's is no hit for it."""
    entry = publish(store, checkpoint)
    other = key(architecture="bb")
    entry.folder.rename(entry.folder.with_name(f"renamed-{other.digest}"))
    assert store.lookup(other, checkpoint) == Miss(OtherKey("architecture"))


def test_an_objection_to_the_entry_is_the_reason(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    asked = []
    found = store.lookup(key(), checkpoint, differs=lambda manifest: asked.append(manifest) or VaeCopied())
    assert (found, asked) == (Miss(VaeCopied()), [entry.manifest])


def test_another_models_entry_is_a_foreign_hit(store: Store, checkpoint: ModelSource, tuned: ModelSource) -> None:
    assert store.lookup(key(), tuned) == Miss(NoGraph())
    entry = publish(store, checkpoint)
    assert store.lookup(key(), tuned) == Hit(entry, foreign=True)
    own = publish(store, tuned)
    assert store.lookup(key(), tuned) == Hit(own)


def test_neighbouring_folders_are_searched(store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    entry = publish(store, checkpoint)
    assert checkpoint.path is not None
    other = ModelSource(tmp_path / "elsewhere" / "tuned.safetensors", "fedcba987654")
    assert isinstance(store.lookup(key(), other), Miss)
    assert store.lookup(key(), other, [checkpoint.path.parent]) == Hit(entry, foreign=True)


def test_a_damaged_entry_is_broken(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    (entry.folder / "graph.aoti").write_bytes(b"")
    assert store.lookup(key(), checkpoint) == Broken(entry.folder, WrongSize("graph.aoti", 0, 4))


def test_an_entry_without_a_manifest_is_broken(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    (entry.folder / "manifest.json").write_text("{")
    found = store.lookup(key(), checkpoint)
    assert isinstance(found, Broken)
    assert isinstance(found.reason, UnreadableManifest)


def test_an_entry_whose_loading_died_is_broken(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    with store.loading(entry):  # this process is alive and knows what it does
        assert store.lookup(key(), checkpoint) == Hit(entry)
    die_while_loading(store, entry)
    assert store.lookup(key(), checkpoint) == Hit(entry)  # once may be bad luck
    die_while_loading(store, entry)
    found = store.lookup(key(), checkpoint)
    assert found == Broken(entry.folder, DiedWhileLoading())
    assert store.lookup(key(), checkpoint) == found  # until it is quarantined
    assert found.reason.text == (
        "the cached graph was quarantined, because the process that loaded it last died meanwhile"
    )


def test_another_models_broken_entry_is_passed_over(store: Store, checkpoint: ModelSource, tuned: ModelSource) -> None:
    entry = publish(store, checkpoint)
    (entry.folder / "graph.aoti").write_bytes(b"")
    assert store.lookup(key(), tuned) == Miss(NoGraph())
    sound = publish(store, ModelSource(None, "aaaaaaaaaaaa"))
    assert store.lookup(key(), tuned) == Hit(sound, foreign=True)


def damaged(store: Store, entry: Entry) -> None:
    (entry.folder / "graph.aoti").write_bytes(b"")


def unreadable(store: Store, entry: Entry) -> None:
    (entry.folder / "manifest.json").write_text("{")


def sound(store: Store, entry: Entry) -> None:
    pass


@pytest.mark.parametrize("change", [sound, damaged, unreadable, die_while_loading])
@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("wanted", [key(), key(architecture="bb")])
def test_a_lookup_changes_nothing(
    change: Callable[[Store, Entry], None],
    foreign: bool,
    wanted: GraphKey,
    store: Store,
    checkpoint: ModelSource,
    tuned: ModelSource,
    models: Path,
) -> None:
    change(store, publish(store, checkpoint))
    store.home.mkdir(exist_ok=True)
    before = snapshot(models, store.home)
    for _ in range(2):
        store.lookup(wanted, tuned if foreign else checkpoint)
        store.sibling(wanted, tuned if foreign else checkpoint)
    assert snapshot(models, store.home) == before


def test_a_lookup_makes_no_folder(store: Store, checkpoint: ModelSource, models: Path) -> None:
    store.lookup(key(), checkpoint)
    assert not store.home.exists()
    assert [p.name for p in models.iterdir()] == ["photo.safetensors"]


def test_a_sibling_differs_in_its_shapes_alone(store: Store, checkpoint: ModelSource) -> None:
    publish(store, ModelSource(None, "fedcba987654"), key(shapes={"dims": {"height": 8}}, architecture="bb"))
    assert store.sibling(key(), checkpoint) is None
    other = publish(store, ModelSource(None, "fedcba987654"), key(shapes={"dims": {"height": 8}}))
    assert store.sibling(key(), checkpoint) == other
    own = publish(store, checkpoint, key(shapes={"dims": {"height": 16}}))
    assert store.sibling(key(), checkpoint) == own
    (own.folder / "graph.aoti").write_bytes(b"damaged")
    assert store.sibling(key(), checkpoint) == other


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
    name: str, store: Store, checkpoint: ModelSource, tuned: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = publish(store, checkpoint)
    publish(store, tuned)  # which must not be adopted over it
    with monkeypatch.context() as patch:
        unreadable_now(entry.folder, name, patch)
        found = store.lookup(key(), checkpoint)
        assert isinstance(found, Unavailable)
        assert (found.folder, found.reason.file) == (entry.folder, name)
    assert store.lookup(key(), checkpoint) == Hit(entry)


def test_a_foreign_entry_unreadable_now_is_passed_over(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = publish(store, checkpoint)
    unreadable_now(entry.folder, "graph.aoti", monkeypatch)
    assert store.lookup(key(), tuned) == Miss(NoGraph())
    assert store.sibling(key(shapes={}), tuned) is None


@pytest.mark.parametrize(("number", "kind"), [(errno.EMFILE, Unavailable), (errno.EACCES, Miss), (errno.ENOENT, Miss)])
def test_a_component_that_cannot_be_listed(
    number: int, kind: type, store: Store, checkpoint: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is closed to this user is as none; one that fails for now may hold the graph."""
    component = publish(store, checkpoint).folder.parent
    really = os.listdir

    def fails(path: Path) -> list[str]:
        if path == component:
            raise OSError(number, os.strerror(number), str(path))
        return really(path)

    monkeypatch.setattr(os, "listdir", fails)
    assert isinstance(store.lookup(key(), checkpoint), kind)
    assert store.sibling(key(), checkpoint) is None


def test_a_nearest_entry_that_cannot_be_read_now(
    store: Store, checkpoint: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = publish(store, checkpoint, key(dtype="float16"))
    with monkeypatch.context() as patch:
        unreadable_now(entry.folder, "manifest.json", patch)
        assert store.lookup(key(), checkpoint) == Miss(NoGraph())
    assert store.lookup(key(), checkpoint) == Miss(NoGraph("dtype float16 instead of float32"))


def hang(folder: Path) -> None:
    """Put pipes, which nobody writes to, in the place of all files of an entry."""
    for path in folder.iterdir():
        path.unlink()
        os.mkfifo(path, 0o600)


def test_a_pipe_never_holds_up_the_store(store: Store, checkpoint: ModelSource, models: Path) -> None:
    entry = publish(store, checkpoint)
    store.remember(entry, FirstUse(eager_ms=1.0))
    signature = (entry.folder / "signature.json").read_bytes()
    hang(entry.folder)
    assert store.lookup(key(), checkpoint) == Miss(WrongSignature())
    (entry.folder / "signature.json").unlink()
    (entry.folder / "signature.json").write_bytes(signature)
    assert store.lookup(key(), checkpoint) == Broken(entry.folder, NotARegularFile("manifest.json"))
    assert store.sibling(key(shapes={}), checkpoint) is None
    assert list(store.entries([models])) == []
    assert dict(store.check_all([models])) == {entry.folder: NotARegularFile("manifest.json")}
    assert store.first_use(entry) == FirstUse()


def test_a_long_name_is_an_error_nowhere(store: Store, checkpoint: ModelSource, models: Path) -> None:
    entry = publish(store, checkpoint)
    files = entry.manifest.files["graph.aoti"]
    tampered = entry.manifest.model_copy(update={"files": {300 * "x": files}})
    rewrite(store, entry, tampered)
    bad = BadFileName(100 * "x")
    assert store.lookup(key(), checkpoint) == Broken(entry.folder, bad)
    assert store.sibling(key(shapes={}), checkpoint) is None
    assert [found.manifest for found in store.entries([models])] == [tampered]
    assert dict(store.check_all([models])) == {entry.folder: bad}


def test_a_checkpoint_with_a_long_name(store: Store, models: Path) -> None:
    """Its folder of graphs has a name that is too long, so they go to the user's."""
    source = ModelSource(models / f"{250 * 'x'}.ckpt", "0123456789ab")
    assert store.lookup(key(), source) == Miss(NoGraph())
    entry = publish(store, source)
    assert store.home in entry.folder.parents
    assert store.lookup(key(), source) == Hit(entry)


def test_no_file_handles_left(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[0]), before[1]))
        with contextlib.suppress(OSError):
            while True:
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        found = store.lookup(key(), checkpoint)
        sibling = store.sibling(key(shapes={}), checkpoint)
    assert isinstance(found, Unavailable)
    assert found.reason.detail.startswith("[Errno 24] Too many open files")
    assert sibling is None
    assert store.lookup(key(), checkpoint) == Hit(entry)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["graph.aoti", "manifest.json", "."])
def test_an_entry_that_is_closed_to_this_user(name: str, store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    mode = (entry.folder / name).stat().st_mode
    (entry.folder / name).chmod(0)
    try:
        assert isinstance(store.lookup(key(), checkpoint), Unavailable)
        ((folder, state),) = store.check_all([entry.folder.parents[3]])
        assert (folder, type(state)) == (entry.folder, UnreadableNow)
    finally:
        (entry.folder / name).chmod(mode)
    assert store.lookup(key(), checkpoint) == Hit(entry)
