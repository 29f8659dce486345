"""Where the key is: a secret's file that the user names, the graph folder, or the folder for settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.store.entries import key, publish
from support.store.users import OTHER, as_root

from onegraph.common import reasons
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.private_folder import RefusedError
from onegraph.graph_cache.trust.signing import KEY_FILE, KEY_VARIABLE, Signer


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


def test_no_folder_for_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError):
        Signer(tmp_path / "file" / "home").key()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = Signer(tmp_path / "file" / "home").key()
    assert Signer(tmp_path / "file" / "home").read_key() == made == Signer(tmp_path / "file" / "home").key()
