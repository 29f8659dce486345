"""The format of the manifest: what it must hold, and which versions of it are left alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.store.entries import NOWHERE, key, publish, snapshot

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.lookup import Broken, Hit, Miss
from onegraph.graph_cache.manifest import VERSION, Strict
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import SIGNATURE_FILE, Signer


def with_manifest(store: Store, entry: Entry, **changed: Any) -> None:
    """Give an entry another manifest, signed by the user; None leaves a field out."""
    fields = {**json.loads(entry.text), **changed}
    left_out = {name for name, value in changed.items() if value is None}
    data = json.dumps({name: value for name, value in fields.items() if name not in left_out}).encode()
    (entry.folder / "manifest.json").write_bytes(data)
    (entry.folder / SIGNATURE_FILE).write_text(Signer(store.home).sign(data).model_dump_json())


@pytest.mark.parametrize(
    "change",
    [{"outputs": 0}, {"outputs": None}, {"cuda_graphs": None}, {"more": 1}, {"code": 1}, {"signature": {}}],
)
def test_a_manifest_says_everything(change: dict[str, Any], store: Store, entry: Entry) -> None:
    with_manifest(store, entry, **change)
    assert isinstance(read(entry.folder), reasons.UnreadableManifest)
    assert isinstance(store.find(key()), Broken)


@pytest.mark.parametrize("more", [{}, {"new_field": {"of": "another kind"}}, {"files": "elsewhere"}])
def test_a_newer_version_is_left_alone(more: dict[str, Any], store: Store) -> None:
    """It is of use to whoever wrote it; a graph of this version stands beside it, and is found after it."""
    newer = publish(store, NOWHERE)
    with_manifest(store, newer, version=VERSION + 1, **more)
    before = snapshot(newer.folder)
    found = store.find(key())
    assert found == Miss(reasons.NewerManifest(VERSION + 1))
    assert found.reason.text == "the cached graph was made by a newer version of OneGraph (manifest version 4)"
    assert dict(store.check_all()) == {newer.folder: reasons.NewerManifest(VERSION + 1)}
    own = publish(store, NOWHERE, content=b"own")
    assert own.folder != newer.folder and snapshot(newer.folder) == before
    assert store.find(key()) == Hit(own)
    assert publish(store, NOWHERE, content=b"again") == own


@pytest.mark.parametrize("rules", [None, {"inputs": ["x"]}])
def test_the_version_before_is_read(rules: dict[str, Any] | None, store: Store, entry: Entry) -> None:
    """There the rules of a block's calls have another name."""
    with_manifest(store, entry, version=2, call_rules=None, signature=rules)
    found = store.find(key())
    assert isinstance(found, Hit)
    assert (found.entry.manifest.version, found.entry.manifest.call_rules) == (2, rules)


@pytest.mark.parametrize("more", [{}, {"files": "elsewhere"}])
def test_an_older_version_is_compiled_anew(more: dict[str, Any], store: Store, entry: Entry) -> None:
    with_manifest(store, entry, version=1, **more)
    assert store.find(key()) == Miss(reasons.OlderManifest(1))
    made = publish(store, NOWHERE)
    assert store.find(key()) == Hit(made) and len([*store.entries()]) == 1


NO_FILES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.touch(),
    "cut": lambda path: path.write_text('{"bytes": 1'),
    "another kind": lambda path: path.write_text("[]"),
    "a field too many": lambda path: path.write_text('{"bytes": 1, "more": 1}'),
    "deep": lambda path: path.write_text("[" * 50000),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "too large": lambda path: path.write_text('{"bytes": 1}' + " " * (1 << 20)),
    "a link": lambda path: path.symlink_to(path.with_name("good")),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "pipe": lambda path: os.mkfifo(path),
    "folder": lambda path: path.mkdir(),
}


class Small(Strict):
    bytes: int


@pytest.mark.parametrize("there", NO_FILES)
def test_a_file_that_may_be_anything_is_read(there: str, tmp_path: Path) -> None:
    (tmp_path / "good").write_text('{"bytes": 1}')
    NO_FILES[there](tmp_path / "small")
    assert Small.read(tmp_path / "small", 1 << 18) is None
    assert Small.read(tmp_path / "good", 1 << 18) == Small(bytes=1)
