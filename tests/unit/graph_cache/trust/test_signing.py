"""Signatures: what this user's installation published is trusted, and nothing else."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
from support.store.entries import key, new_entry, publish, rewrite, snapshot

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import KEY_FILE, SIGNATURE_FILE, Signer

OTHER = 12345  # nobody's number
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def unsign(entry: Entry) -> None:
    (entry.folder / SIGNATURE_FILE).unlink()


def test_publishing_makes_a_key_of_this_user_alone(store: Store, entry: Entry) -> None:
    found = (store.home / KEY_FILE).stat()
    assert (found.st_mode & 0o777, found.st_size, found.st_uid) == (0o600, 32, os.geteuid())
    assert list(store.home.glob(".*")) == []
    signature = json.loads((entry.folder / SIGNATURE_FILE).read_text())
    assert (signature["version"], signature["kind"]) == (1, "hmac-sha256")
    assert (len(signature["key"]), len(signature["value"])) == (8, 64)
    assert store.trust(entry) is None


def make_key(home: Path, results: multiprocessing.Queue[str]) -> None:
    results.put(Signer(home).key().hex())


@pytest.mark.parametrize("links", [True, False])
def test_processes_agree_on_one_key(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise PermissionError(1, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", fails)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    processes = [context.Process(target=make_key, args=(tmp_path / "home", results)) for _ in range(8)]
    for process in processes:
        process.start()
    keys = {results.get(timeout=30) for _ in processes}
    for process in processes:
        process.join()
    assert keys == {(tmp_path / "home" / KEY_FILE).read_bytes().hex()}
    assert [path.name for path in (tmp_path / "home").iterdir()] == [KEY_FILE]


def test_an_unsigned_entry_is_no_hit(store: Store, checkpoint: ModelSource, tuned: ModelSource, entry: Entry) -> None:
    unsign(entry)
    before = snapshot(entry.folder)
    assert store.lookup(key(), checkpoint) == Miss(reasons.Unsigned())
    assert store.lookup(key(), tuned) == Miss(reasons.NoGraph())
    assert store.sibling(key(shapes={}), checkpoint) is None
    assert snapshot(entry.folder) == before
    assert reasons.Unsigned().text.startswith("the cached graph has no signature")


def test_a_changed_manifest_is_no_hit(store: Store, checkpoint: ModelSource, entry: Entry) -> None:
    manifest = entry.folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    assert store.lookup(key(), checkpoint) == Miss(reasons.WrongSignature())
    assert store.sibling(key(shapes={}), checkpoint) is None


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 2, "kind": "hmac-sha256", "key": "00000000", "value": "%s"}' % (64 * "0"),
        '{"version": 1, "kind": "none", "key": "00000000", "value": "%s"}' % (64 * "0"),
        '{"version": 1, "kind": "hmac-sha256", "key": "00000000", "value": ""}',
        9999 * " ",
    ],
)
def test_a_crafted_signature_is_wrong(signature: str, store: Store, checkpoint: ModelSource, entry: Entry) -> None:
    (entry.folder / SIGNATURE_FILE).write_text(signature)
    assert store.lookup(key(), checkpoint) == Miss(reasons.WrongSignature())


def test_the_id_of_the_key_does_not_suffice(store: Store, checkpoint: ModelSource, entry: Entry) -> None:
    signature = json.loads((entry.folder / SIGNATURE_FILE).read_text())
    (entry.folder / SIGNATURE_FILE).write_text(json.dumps({**signature, "value": 64 * "0"}))
    assert store.lookup(key(), checkpoint) == Miss(reasons.WrongSignature())


def test_another_users_key_is_wrong(checkpoint: ModelSource, tmp_path: Path, entry: Entry) -> None:
    other = Store(tmp_path / "other")
    assert other.lookup(key(), checkpoint) == Miss(reasons.WrongSignature())  # without a key, and without making one
    assert not other.home.exists()
    Signer(other.home).key()
    assert other.lookup(key(), checkpoint) == Miss(reasons.WrongSignature())


def test_two_users_publish_beside_each_other(
    store: Store, checkpoint: ModelSource, tmp_path: Path, entry: Entry
) -> None:
    """Neither touches the other's entry, and each finds the own one."""
    other, before = Store(tmp_path / "other"), snapshot(entry.folder)
    theirs = publish(other, checkpoint, content=b"theirs")
    assert theirs.folder.parent == entry.folder.parent
    assert publish(other, checkpoint, content=b"again") == theirs
    assert snapshot(entry.folder) == before
    assert other.lookup(key(), checkpoint) == Hit(theirs)
    assert store.lookup(key(), checkpoint) == Hit(entry)
    unsign(theirs)
    third = publish(other, checkpoint, content=b"third")
    assert other.lookup(key(), checkpoint) == Hit(third)
    assert len(list(entry.folder.parent.iterdir())) == 3


def test_a_damaged_manifest_of_a_stranger_stays(store: Store, checkpoint: ModelSource, entry: Entry) -> None:
    (entry.folder / "manifest.json").write_text("{")
    unsign(entry)
    assert store.lookup(key(), checkpoint) == Miss(reasons.Unsigned())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_key_that_others_may_read_is_refused(mode: int, store: Store, checkpoint: ModelSource, entry: Entry) -> None:
    if os.geteuid() == 0:
        os.chown(store.home / KEY_FILE, -1, OTHER)
    (store.home / KEY_FILE).chmod(mode)
    assert store.lookup(key(), checkpoint) == Miss(reasons.SigningKeyRefused("open"))


@as_root
def test_a_key_of_another_user_is_refused(store: Store, checkpoint: ModelSource, entry: Entry) -> None:
    os.chown(store.home / KEY_FILE, OTHER, OTHER)
    assert store.lookup(key(), checkpoint) == Miss(reasons.SigningKeyRefused("foreign"))


def test_a_link_is_no_key(store: Store, checkpoint: ModelSource, tmp_path: Path, entry: Entry) -> None:
    (store.home / KEY_FILE).rename(tmp_path / "key")
    (store.home / KEY_FILE).symlink_to(tmp_path / "key")
    assert store.lookup(key(), checkpoint) == Miss(reasons.SigningKeyRefused("damaged"))


def test_a_key_of_another_length_is_refused(store: Store, checkpoint: ModelSource, entry: Entry) -> None:
    (store.home / KEY_FILE).write_bytes(33 * b"x")
    assert store.lookup(key(), checkpoint) == Miss(reasons.SigningKeyRefused("damaged"))
    (store.home / KEY_FILE).write_bytes(b"x")
    os.utime(store.home / KEY_FILE, (0, 0))
    assert store.lookup(key(), checkpoint) == Miss(reasons.SigningKeyRefused("damaged"))


def test_an_adopted_copy_has_the_same_signature(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, entry: Entry
) -> None:
    indented = entry.manifest.model_copy(update={"label": entry.manifest.label})
    rewrite(store, entry, indented)  # as another version of the pack would format it
    found = store.lookup(key(), tuned)
    assert isinstance(found, Hit)
    copy = store.share_with_model(found, key(), tuned)
    assert copy.folder != entry.folder
    for name in ("manifest.json", SIGNATURE_FILE):
        assert (copy.folder / name).read_bytes() == (entry.folder / name).read_bytes()
    assert store.lookup(key(), tuned) == Hit(copy)


def test_a_copied_user_folder_keeps_its_graphs(store: Store, tmp_path: Path) -> None:
    source = ModelSource(None, "0123456789ab")
    entry = publish(store, source)
    shutil.copytree(store.home, tmp_path / "moved")
    moved = Store(tmp_path / "moved").lookup(key(), source)
    assert isinstance(moved, Hit)
    assert read(moved.entry.folder) == moved.entry
    assert moved.entry.manifest == entry.manifest


def test_a_signature_is_no_file_of_a_graph(store: Store, checkpoint: ModelSource) -> None:
    with store.staging(checkpoint) as staged:
        (staged / "graph.aoti").write_bytes(b"code")
        (staged / SIGNATURE_FILE).write_text("crafted by the compile")
        made = store.publish(key(), staged, new_entry(), checkpoint)
    assert store.trust(made) is None


def test_keys_that_go_leave_one_graph_beside_the_first(
    store: Store, checkpoint: ModelSource, entry: Entry, tmp_path: Path
) -> None:
    """As of a container whose home is lost at each start. What others made stays, and so do graphs of other code."""
    other_code = entry.folder.with_name(f"{entry.folder.name}-abc123")
    shutil.copytree(entry.folder, other_code)
    kept = {entry.folder, other_code}
    for number in range(3):
        start = Store(tmp_path / f"home {number}")
        assert start.lookup(key(), checkpoint) == Miss(reasons.WrongSignature())
        made = publish(start, checkpoint)
        assert start.lookup(key(), checkpoint) == Hit(made)
        assert {*entry.folder.parent.iterdir()} == {*kept, made.folder}
    if os.geteuid() == 0:
        os.chown(made.folder, OTHER, OTHER)
        last = publish(Store(tmp_path / "last"), checkpoint)
        assert {*entry.folder.parent.iterdir()} == {*kept, made.folder, last.folder}
    assert store.lookup(key(), checkpoint) == Hit(entry)
