"""Signatures: what this user's installation published is trusted, and nothing else. And where its key is."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from support.store.entries import key, new_entry, publish, snapshot
from support.store.users import OTHER, as_root
from support.windows.absent import needs_posix

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.private_folder import RefusedError
from onegraph.graph_cache.trust.signing import KEY_FILE, KEY_VARIABLE, SIGNATURE_FILE, Signer


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


def test_an_unsigned_entry_is_no_hit_and_stays(store: Store, entry: Entry) -> None:
    (entry.folder / SIGNATURE_FILE).unlink()
    for manifest in (entry.text, b"{"):
        (entry.folder / "manifest.json").write_bytes(manifest)
        before = snapshot(entry.folder)
        assert store.find(key()) == Miss(reasons.Unsigned())
        assert store.sibling(key(shapes={})) is None
        assert snapshot(entry.folder) == before
    assert reasons.Unsigned().text.startswith("the cached graph has no signature")


def test_a_changed_manifest_is_no_hit(store: Store, entry: Entry) -> None:
    (entry.folder / "manifest.json").write_bytes(entry.text + b"\n")
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


def shared(mode: int) -> Callable[[Path], object]:
    """Give a key to a group with other members, as far as this user can."""
    return lambda path: (os.geteuid() == 0 and os.chown(path, -1, OTHER), path.chmod(mode))


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        *((shared(mode), "open") for mode in (0o640, 0o604, 0o660, 0o620)),
        pytest.param(lambda path: os.chown(path, OTHER, OTHER), "foreign", marks=as_root),
        (lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")), "damaged"),
        (lambda path: path.write_bytes(33 * b"x"), "damaged"),
        (lambda path: (path.write_bytes(b"x"), os.utime(path, (0, 0))), "damaged"),
    ],
)
def test_a_key_that_is_refused(
    spoil: Callable[[Path], object], fault: Literal["open", "foreign", "damaged"], store: Store, entry: Entry
) -> None:
    spoil(store.home / KEY_FILE)
    assert store.find(key()) == Miss(reasons.SigningKeyRefused(fault))


def test_a_copied_user_folder_keeps_its_graphs(store: Store, entry: Entry, tmp_path: Path) -> None:
    shutil.copytree(store.home, tmp_path / "moved")
    moved = Store(tmp_path / "moved").find(key())
    assert isinstance(moved, Hit)
    assert read(moved.entry.folder) == moved.entry and moved.entry.manifest == entry.manifest


def test_a_signature_is_no_file_of_a_graph(store: Store) -> None:
    with store.staging() as staged:
        (staged / "graph.aoti").write_bytes(b"code")
        (staged / SIGNATURE_FILE).write_text("crafted by the compile")
        made = store.publish(key(), staged, new_entry())
    assert store.signer.judge(made) is None


# Where the key is -------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file as a container's runtime mounts it: through links, in hex digits, and for all to read."""
    real = tmp_path / "secrets" / "..2026" / "onegraph"
    real.parent.mkdir(parents=True)
    real.write_text(32 * "5a" + "\n")
    real.chmod(0o444 if os.geteuid() == 0 else 0o400)
    (tmp_path / "secrets" / "..data").symlink_to("..2026")
    (tmp_path / "secrets" / "onegraph").symlink_to("..data/onegraph")
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "secrets" / "onegraph"))
    return real


@pytest.mark.usefixtures("secret")
def test_a_secret_signs_for_all_starts(store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    entry = publish(store, checkpoint)
    assert not (store.home / KEY_FILE).exists()
    other = Store(tmp_path / "another home")
    taken = other.take(key(), checkpoint)
    assert isinstance(taken, Taken) and taken.entry.text == entry.text


def test_a_secret_of_32_bytes(secret: Path, store: Store) -> None:
    secret.chmod(0o600)
    secret.write_bytes(32 * b"Z")
    assert store.signer.key() == 32 * b"Z"


@pytest.mark.parametrize("content", ["", "5a", 31 * "5a", 33 * "5a", 64 * "x", 2000 * "5", "é" * 32])
def test_a_secret_that_is_no_key(content: str, secret: Path, store: Store) -> None:
    secret.chmod(0o600)
    secret.write_text(content, encoding="utf-8")
    with pytest.raises(RefusedError) as refused, store.staging():
        raise AssertionError("compiled in vain")
    assert refused.value.reason == reasons.SigningKeyRefused("damaged", "onegraph")


def test_a_secret_that_is_not_mounted(secret: Path, store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    secret.unlink()
    missing = reasons.SigningKeyRefused("missing", "onegraph")
    assert store.find(key()) == Miss(missing)
    with pytest.raises(RefusedError) as refused, store.staging():
        raise AssertionError("compiled in vain")
    assert refused.value.reason == missing and not (store.home / KEY_FILE).exists()
    assert missing.text.endswith("it is not there; mount it, or name a key of this user alone in ONEGRAPH_SIGNING_KEY")
    assert entry.folder.exists()


@as_root
def test_a_secret_that_others_may_change_is_refused(secret: Path, store: Store) -> None:
    def fault() -> object:
        found = store.signer.read_key()
        return found.fault if isinstance(found, reasons.SigningKeyRefused) else found

    assert fault() == 32 * b"Z"
    secret.chmod(0o440)
    os.chown(secret, 0, OTHER)  # as with `fsGroup`
    assert fault() == 32 * b"Z"
    secret.chmod(0o460)
    assert fault() == "open"
    secret.chmod(0o444)
    secret.parent.chmod(0o777)  # another file could take its place
    assert fault() == "open"
    secret.parent.chmod(0o755)
    os.chown(secret, OTHER, OTHER)
    assert fault() == "foreign"


@as_root
def test_a_key_that_others_could_read_is_replaced(store: Store, checkpoint: ModelSource, settings: Path) -> None:
    """By one in the folder for settings, as where a start opens all files to a group. It says so until it is closed."""
    first = publish(store, checkpoint)
    os.chown(store.home / KEY_FILE, -1, OTHER)
    (store.home / KEY_FILE).chmod(0o660)
    assert store.find(key()) == Miss(reasons.SigningKeyRefused("open"))
    second = publish(store, checkpoint, content=b"more")
    assert (settings / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert store.find(key()) == Hit(second)
    assert store.signer.judge(first) == reasons.SigningKeyRefused("open")
    (store.home / KEY_FILE).chmod(0o600)
    assert store.find(key()) == Hit(first)


@needs_posix("on Windows no variable names the folder for settings")
def test_no_folder_for_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError):
        Signer(tmp_path / "file" / "home").key()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = Signer(tmp_path / "file" / "home").key()
    assert Signer(tmp_path / "file" / "home").read_key() == made == Signer(tmp_path / "file" / "home").key()
