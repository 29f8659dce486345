"""The weights of a graph: a file of its entry."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
from pathlib import Path

import pytest
from support.store.entries import CONSTANTS, key, new_entry, publish

from onegraph.common import reasons
from onegraph.common.errors import LoadError
from onegraph.graph_cache import entry as entries
from onegraph.graph_cache.entry import Entry, constants_of
from onegraph.graph_cache.files import is_passing
from onegraph.graph_cache.integrity import check
from onegraph.graph_cache.lookup import Broken
from onegraph.graph_cache.manifest import CONSTANTS_FILE, MOST_BYTES
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store


def altered(entry: Entry, **changes: object) -> Entry:
    return Entry(entry.folder, entry.manifest.model_copy(update=changes))


def test_weights_are_those_that_were_published(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    assert constants_of(entry) == CONSTANTS
    assert "constants" not in json.loads((entry.folder / "manifest.json").read_text())
    shutil.rmtree(entry.folder)
    taken = store.take(key(), checkpoint)
    assert isinstance(taken, Taken) and constants_of(taken.entry) == CONSTANTS


def test_weights_that_were_changed_are_damage(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
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


def test_weights_unreadable_now_are_no_damage(
    store: Store, checkpoint: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, most: int) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    entry = publish(store, checkpoint)
    monkeypatch.setattr(entries, "read_regular", fails)
    with pytest.raises(LoadError) as raised:
        constants_of(entry)
    assert is_passing(raised.value.__cause__)


def test_a_manifest_must_list_the_weights(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    files = {name: file for name, file in entry.manifest.files.items() if name != CONSTANTS_FILE}
    assert check(altered(entry, files=files)) == reasons.MissingFile(CONSTANTS_FILE)
    alone = {CONSTANTS_FILE: entry.manifest.files[CONSTANTS_FILE]}
    assert check(altered(entry, files=alone)) == reasons.EmptyEntry()


def test_a_backend_cannot_write_the_weights(store: Store, checkpoint: ModelSource) -> None:
    new = dataclasses.replace(new_entry(), files=("graph.aoti", CONSTANTS_FILE))
    with pytest.raises(OSError, match=CONSTANTS_FILE):
        publish(store, checkpoint, new=new)


def test_weights_without_end_are_not_saved(store: Store, checkpoint: ModelSource) -> None:
    huge = dataclasses.replace(CONSTANTS[0], name=MOST_BYTES * "x")
    with pytest.raises(OSError, match="weights of more than 4194304 bytes"):
        publish(store, checkpoint, new=dataclasses.replace(new_entry(), constants=(huge,)))
    assert list(store.entries()) == []
