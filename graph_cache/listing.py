"""What `onegraph ls` tells of each entry: from the index, as far as files are those that it read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.reasons import UnreadableNow, Untrusted
from . import first_use, ownership
from .entry import Entry, read
from .first_use import FirstUse
from .index import Index, Stamp, file_stamp
from .index_file import Row
from .layout import Layout, listed_now, visible
from .manifest import MANIFEST_FILE
from .signing import SIGNATURE_FILE, Signer, Trusted


@dataclass(frozen=True)
class Listed:
    """An entry in short.

    Attributes:
        key: its fields without architecture and shapes.
        label: the shapes for people.
        bytes: size of the graph's files.
        first_use: what the first use on this machine showed.
        provenance: whose it is, or why it is never loaded.
    """

    folder: Path
    key: dict[str, Any]
    label: str
    bytes: int
    first_use: FirstUse
    provenance: Trusted | Untrusted | UnreadableNow


def listing(layout: Layout, index: Index, signer: Signer, neighbours: Iterable[Path]) -> Iterator[Listed]:
    """Iterate over the readable entries in the user's folder and beside the checkpoints in `neighbours`."""
    keys: dict[str, dict[str, Any]] = {}  # thousands of entries have few
    for root in [layout.home, *neighbours]:
        for component in layout.components(root):
            right: dict[str, Stamp] = {}
            for name, row in index.contents(component, visible(listed_now(component))).rows.items():
                folder = component / name
                if row.others not in keys:
                    keys[row.others] = json.loads(row.others)
                provenance = _judge(folder, row, signer, right)
                yield Listed(folder, keys[row.others], row.label, row.bytes, first_use.read_here(folder), provenance)
            index.note_signatures(component, right)


def _judge(folder: Path, row: Row, signer: Signer, right: dict[str, Stamp]) -> Trusted | Untrusted | UnreadableNow:
    """Judge an entry; its signature only where it is not the one that was right before."""
    signature = file_stamp(folder / SIGNATURE_FILE)
    if signature is not None and signature == row.signature and ownership.check(folder) is None:
        return Trusted()
    entry = read(folder)
    if not isinstance(entry, Entry):  # it changed just now
        return signer.judge_unread(folder) or UnreadableNow(MANIFEST_FILE, "")
    found = signer.provenance(entry)
    if found == Trusted() and signature is not None and row.stamp is not None:
        right[folder.name] = signature
    return found
