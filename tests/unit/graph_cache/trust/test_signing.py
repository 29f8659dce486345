"""Signatures: what this user's installation published is trusted, and nothing else."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
from support.store.entries import key, new_entry, publish, snapshot
from support.store.users import OTHER, as_root

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import KEY_FILE, SIGNATURE_FILE, Signer


def unsign(entry: Entry) -> None:
    (entry.folder / SIGNATURE_FILE).unlink()


def test_publishing_makes_a_key_of_this_user_alone(store: Store, entry: Entry) -> None:
    found = (store.home / KEY_FILE).stat()
    assert (found.st_mode & 0o777, found.st_size, found.st_uid) == (0o600, 32, os.geteuid())
    signature = json.loads((entry.folder / SIGNATURE_FILE).read_text())
    assert (signature["version"], signature["kind"]) == (1, "hmac-sha256")
    assert (len(signature["key"]), len(signature["value"])) == (8, 64)
    assert store.signer.judge(entry) is None


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


def test_an_unsigned_entry_is_no_hit(store: Store, entry: Entry) -> None:
    unsign(entry)
    before = snapshot(entry.folder)
    assert store.find(key()) == Miss(reasons.Unsigned())
    assert store.sibling(key(shapes={})) is None
    assert snapshot(entry.folder) == before
    assert reasons.Unsigned().text.startswith("the cached graph has no signature")


def test_a_changed_manifest_is_no_hit(store: Store, entry: Entry) -> None:
    manifest = entry.folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    assert store.find(key()) == Miss(reasons.WrongSignature())
    assert store.sibling(key(shapes={})) is None


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
def test_a_crafted_signature_is_wrong(signature: str, store: Store, entry: Entry) -> None:
    (entry.folder / SIGNATURE_FILE).write_text(signature)
    assert store.find(key()) == Miss(reasons.WrongSignature())


def test_another_users_key_is_wrong(tmp_path: Path, entry: Entry) -> None:
    other = Store(tmp_path / "other")
    assert other.signer.judge(entry) == reasons.WrongSignature()  # without a key, and without making one
    assert not other.home.exists()
    Signer(other.home).key()
    assert other.signer.judge(entry) == reasons.WrongSignature()


def test_a_damaged_manifest_of_a_stranger_stays(store: Store, entry: Entry) -> None:
    (entry.folder / "manifest.json").write_text("{")
    unsign(entry)
    assert store.find(key()) == Miss(reasons.Unsigned())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_key_that_others_may_read_is_refused(mode: int, store: Store, entry: Entry) -> None:
    if os.geteuid() == 0:
        os.chown(store.home / KEY_FILE, -1, OTHER)
    (store.home / KEY_FILE).chmod(mode)
    assert store.find(key()) == Miss(reasons.SigningKeyRefused("open"))


@as_root
def test_a_key_of_another_user_is_refused(store: Store, entry: Entry) -> None:
    os.chown(store.home / KEY_FILE, OTHER, OTHER)
    assert store.find(key()) == Miss(reasons.SigningKeyRefused("foreign"))


def test_a_link_is_no_key(store: Store, tmp_path: Path, entry: Entry) -> None:
    (store.home / KEY_FILE).rename(tmp_path / "key")
    (store.home / KEY_FILE).symlink_to(tmp_path / "key")
    assert store.find(key()) == Miss(reasons.SigningKeyRefused("damaged"))


def test_a_key_of_another_length_is_refused(store: Store, entry: Entry) -> None:
    (store.home / KEY_FILE).write_bytes(33 * b"x")
    assert store.find(key()) == Miss(reasons.SigningKeyRefused("damaged"))
    (store.home / KEY_FILE).write_bytes(b"x")
    os.utime(store.home / KEY_FILE, (0, 0))
    assert store.find(key()) == Miss(reasons.SigningKeyRefused("damaged"))


def test_a_copied_user_folder_keeps_its_graphs(store: Store, tmp_path: Path) -> None:
    source = ModelSource(None, "0123456789ab")
    entry = publish(store, source)
    shutil.copytree(store.home, tmp_path / "moved")
    moved = Store(tmp_path / "moved").find(key())
    assert isinstance(moved, Hit)
    assert read(moved.entry.folder) == moved.entry
    assert moved.entry.manifest == entry.manifest


def test_a_signature_is_no_file_of_a_graph(store: Store) -> None:
    with store.staging() as staged:
        (staged / "graph.aoti").write_bytes(b"code")
        (staged / SIGNATURE_FILE).write_text("crafted by the compile")
        made = store.publish(key(), staged, new_entry())
    assert store.signer.judge(made) is None
