"""What `onegraph ls` tells of each entry: from the index, as far as files are those that it read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.reasons import UnreadableNow, Untrusted
from .entry import Entry, read
from .first_use import FIRST_USE_FILE, read_here
from .index import Index, file_stamp
from .index_file import Row, Stamp, Used
from .layout import Layout, listed_now, visible
from .manifest import MANIFEST_FILE
from .trust import ownership
from .trust.publishers import PUBLISHER_FILE
from .trust.signing import SIGNATURE_FILE, Signer, Trusted


@dataclass(frozen=True)
class Listed:
    """An entry in short.

    Attributes:
        key: its fields without architecture and shapes.
        label: the shapes for people.
        bytes: size of the graph's files.
        relative_l2: the largest difference from eager that this machine found; None where it compared none.
        speedup: over eager on this machine; None where that was not measured.
        provenance: whose it is, or why it is never loaded.
    """

    folder: Path
    key: dict[str, Any]
    label: str
    bytes: int
    relative_l2: float | None
    speedup: float | None
    provenance: Trusted | Untrusted | UnreadableNow


def listing(layout: Layout, index: Index, signer: Signer, neighbours: Iterable[Path]) -> Iterator[Listed]:
    """Iterate over the readable entries in the user's folder and beside the checkpoints in `neighbours`."""
    keys: dict[str, dict[str, Any]] = {}  # thousands of entries have few
    for root in [layout.home, *neighbours]:
        for component in layout.components(root):
            contents = index.contents(component, visible(listed_now(component)))
            seen: dict[str, Row] = {}
            for name, row in contents.rows.items():
                folder = component / name
                if row.others not in keys:
                    keys[row.others] = json.loads(row.others)
                used = _used(str(folder), row)
                signature, provenance = _provenance(str(folder), row, signer)
                now = row._replace(used=used if used.stamp is not None else None, signature=signature)
                if now != row:
                    seen[name] = now
                found = used.relative_l2, used.speedup
                yield Listed(folder, keys[row.others], row.label, row.bytes, *found, provenance)
            index.note(component, contents, seen)
            for name in contents.untrusted:
                listed = _untrusted(component / name, signer)
                if listed is not None:
                    yield listed


def _untrusted(folder: Path, signer: Signer) -> Listed | None:
    """Describe an entry that is never loaded, by what its manifest claims; None where it claims nothing."""
    entry = read(folder)
    if not isinstance(entry, Entry):
        return None
    key = {name: value for name, value in entry.manifest.key.items() if name not in ("architecture", "shapes")}
    return Listed(folder, key, entry.manifest.label, entry.bytes, None, None, signer.provenance(entry))


def _used(folder: str, row: Row) -> Used:
    """Tell what the first use showed, read anew where the file is another one."""
    if not os.path.lexists(f"{folder}/{FIRST_USE_FILE}"):
        return Used(None, None, None)
    # Whether a publisher's entry has any depends on more than the file.
    stamp = None if os.path.lexists(f"{folder}/{PUBLISHER_FILE}") else file_stamp(folder, FIRST_USE_FILE)
    if stamp is not None and row.used is not None and row.used.stamp == stamp:
        return row.used
    result = read_here(Path(folder))
    return Used(stamp, max(result.checked.values(), default=None), result.speedup)


def _provenance(folder: str, row: Row, signer: Signer) -> tuple[Stamp | None, Trusted | Untrusted | UnreadableNow]:
    """Tell whose an entry is, and the stamp of a right signature; neither is read again where both are as before."""
    stamp = file_stamp(folder, SIGNATURE_FILE)
    path = Path(folder)
    if row.stamp is not None and stamp is not None and stamp == row.signature and ownership.check(path) is None:
        return stamp, Trusted()
    entry = read(path)
    if not isinstance(entry, Entry):  # it changed just now
        return None, signer.judge_unread(path) or UnreadableNow(MANIFEST_FILE, "")
    found = signer.provenance(entry)
    return (stamp if found == Trusted() and row.stamp is not None else None), found
