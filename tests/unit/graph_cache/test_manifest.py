"""The format of the manifest: what it must hold, and which versions of it are left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.store.entries import key, publish, snapshot

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.lookup import Broken, Hit, Miss
from onegraph.graph_cache.manifest import VERSION
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import SIGNATURE_FILE, Signer


def with_manifest(store: Store, entry: Entry, **changed: Any) -> None:
    """Give an entry another manifest, signed by the user; None leaves a field out."""
    fields = {**json.loads(entry.text), **changed}
    data = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
    (entry.folder / "manifest.json").write_bytes(data)
    (entry.folder / SIGNATURE_FILE).write_text(Signer(store.home).sign(data).model_dump_json())


@pytest.mark.parametrize("change", [{"outputs": 0}, {"outputs": None}, {"cuda_graphs": None}, {"more": 1}, {"code": 1}])
def test_a_manifest_says_everything(change: dict[str, Any], store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    with_manifest(store, entry, **change)
    assert isinstance(read(entry.folder), reasons.UnreadableManifest)
    assert isinstance(store.lookup(key(), checkpoint), Broken)


@pytest.mark.parametrize("more", [{}, {"new_field": {"of": "another kind"}}, {"files": "elsewhere"}])
def test_a_newer_version_is_left_alone(more: dict[str, Any], store: Store, checkpoint: ModelSource) -> None:
    """It is of use to whoever wrote it; a graph of this version stands beside it, and is found after it."""
    newer = publish(store, checkpoint)
    with_manifest(store, newer, version=VERSION + 1, **more)
    before = snapshot(newer.folder)
    found = store.lookup(key(), checkpoint)
    assert found == Miss(reasons.NewerManifest(VERSION + 1))
    assert found.reason.text == "the cached graph was made by a newer version of OneGraph (manifest version 3)"
    assert dict(store.check_all([checkpoint.path.parent if checkpoint.path else Path()])) == {
        newer.folder: reasons.NewerManifest(VERSION + 1)
    }
    own = publish(store, checkpoint, content=b"own")
    assert own.folder != newer.folder and snapshot(newer.folder) == before
    assert store.lookup(key(), checkpoint) == Hit(own)
    assert publish(store, checkpoint, content=b"again") == own


def test_an_older_version_is_compiled_anew(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    with_manifest(store, entry, version=1)
    assert isinstance(store.lookup(key(), checkpoint), Broken)
