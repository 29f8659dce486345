"""Publishing: whole or not at all, and only what look-ups take. What an entry replaces is in test_home.py.

Also the weights that a graph reads, which are a file of its entry.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.store.entries import CONSTANTS, NOWHERE, key, new_entry, publish

from onegraph.common import reasons
from onegraph.common.errors import LoadError
from onegraph.graph_cache import entry as entries
from onegraph.graph_cache.entry import Entry, constants_of
from onegraph.graph_cache.files import is_passing
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.integrity import check
from onegraph.graph_cache.lookup import Broken
from onegraph.graph_cache.manifest import CONSTANTS_FILE, MOST_BYTES, VERSION
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.publish import NotPublishedError
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store


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


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"files": ()}, "its manifest lists"),
        ({"files": ("graph.aoti", "compile.log")}, "its manifest lists"),
        ({"files": ("graph.aoti", CONSTANTS_FILE)}, CONSTANTS_FILE),  # which no backend writes
        ({"label": (4 << 20) * "x"}, "manifest of more than 4194304 bytes"),
        (
            {"constants": (dataclasses.replace(CONSTANTS[0], name=MOST_BYTES * "x"),)},
            "weights of more than 4194304 bytes",
        ),
    ],
    ids=range(5),
)
def test_a_graph_that_no_lookup_takes_is_not_saved(changed: dict[str, Any], why: str, store: Store) -> None:
    with pytest.raises(OSError, match=why):
        publish(store, NOWHERE, new=dataclasses.replace(new_entry(), **changed))
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


# Weights ----------------------------------------------------------------------------------------------------------


def test_weights_are_those_that_were_published(store: Store, entry: Entry, checkpoint: ModelSource) -> None:
    assert constants_of(entry) == CONSTANTS
    assert "constants" not in json.loads((entry.folder / "manifest.json").read_text())
    shutil.rmtree(entry.folder)
    taken = store.take(key(), checkpoint)
    assert isinstance(taken, Taken) and constants_of(taken.entry) == CONSTANTS


def test_weights_that_were_changed_are_damage(store: Store, entry: Entry) -> None:
    file = entry.folder / CONSTANTS_FILE
    file.write_bytes(file.read_bytes().replace(b"[4]", b"[8]"))
    assert store.find(key()) == Broken(entry.folder, reasons.DigestDiffers(CONSTANTS_FILE))
    with pytest.raises(LoadError, match="not the one that was published"):
        constants_of(entry)
    file.unlink()
    assert check(entry) == reasons.MissingFile(CONSTANTS_FILE)
    with pytest.raises(LoadError) as raised:
        constants_of(entry)
    assert not is_passing(raised.value.__cause__)


def test_weights_unreadable_now_are_no_damage(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path, most: int) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(entries, "read_regular", fails)
    with pytest.raises(LoadError) as raised:
        constants_of(entry)
    assert is_passing(raised.value.__cause__)
