"""Publishing: whole or not at all, and only what look-ups take. What an entry replaces is in test_home.py."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from support.store.entries import key, new_entry, publish

from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.manifest import VERSION
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.publish import NotPublishedError
from onegraph.graph_cache.store import Store

NOWHERE = ModelSource(None, "0123456789ab")


def test_an_entry_holds_its_files_and_a_manifest(store: Store, entry: Entry) -> None:
    names = ["constants.json", "graph.aoti", "manifest.json", "signature.json"]
    assert sorted(path.name for path in entry.folder.iterdir()) == names
    assert (entry.manifest.key, entry.manifest.version) == (key().fields(), VERSION)
    new = dataclasses.replace(new_entry(), call_rules={"inputs": ["x"]}, outputs=2, cuda_graphs=True)
    block = publish(store, NOWHERE, key(component="unet_block"), new=new).manifest
    assert (block.call_rules, block.outputs, block.cuda_graphs) == ({"inputs": ["x"]}, 2, True)


def test_staging_leaves_nothing_behind(store: Store) -> None:
    def interrupted() -> None:
        with store.staging() as staged:
            (staged / "half").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [*(store.home / ".staging").iterdir()] == [] == [*store.entries()]


def test_a_graph_that_no_lookup_takes_is_not_saved(store: Store) -> None:
    for files in ((), ("graph.aoti", "compile.log")):
        with pytest.raises(OSError, match="its manifest lists"):
            publish(store, NOWHERE, new=dataclasses.replace(new_entry(), files=files))
    with pytest.raises(OSError, match="manifest of more than 4194304 bytes"):
        publish(store, NOWHERE, new=new_entry(label=(4 << 20) * "x"))
    assert [*store.entries()] == []


def test_a_link_in_staging_is_no_file(store: Store, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"code")
    with store.staging() as staged:
        (staged / "graph.aoti").symlink_to(tmp_path / "outside")
        with pytest.raises(NotPublishedError) as refused:
            store.publish(key(), staged, new_entry())
    assert refused.value.location == store.graphs


def test_nothing_is_written_through_a_link(store: Store, entry: Entry, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (entry.folder / f".outcome.json.{os.getpid()}").symlink_to(outside)
    (entry.folder / "outcome.json").symlink_to(outside)
    store.remember(entry, FirstUse(eager_ms=1.0))
    assert outside.read_text() == "mine"
    assert store.first_use(entry) == FirstUse(eager_ms=1.0)
