"""Graphs of some size, which this installation can use, and how the home lists them."""

from __future__ import annotations

import os

from onegraph.common.installed import torch_version
from onegraph.graph_cache.disk import marks
from onegraph.graph_cache.disk.listing import Listed
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from support.store.entries import NOWHERE, key

BIG = 100_000  # bytes, beside which a manifest is small


def usable(number: int = 0, **changes: object) -> GraphKey:
    """A key that this installation can use, one of many."""
    return key(architecture=f"{number:064x}", target={"device": "cpu", "torch": torch_version()}, **changes)


def used(entry: Entry, seconds: float, source: ModelSource = NOWHERE) -> None:
    """Have an entry be used so long after the first second of 1970."""
    marks.note_use(entry.folder, "restored", source)
    for path in entry.folder.iterdir():
        os.utime(path, (seconds, seconds))


def listed(store: Store, entry: Entry) -> Listed:
    """An entry as lists show it."""
    return next(one for one in store.disk.entries() if one.path == entry.folder)


def left(store: Store) -> list[str]:
    return [one.folder for one in store.disk.entries()]


def on_disk(store: Store) -> int:
    """Bytes of all entries' files, as the system tells them."""
    return sum(one.lstat().st_size for one in store.graphs.glob("*/*/*"))
