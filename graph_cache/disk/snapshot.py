"""A list of graphs that is read anew only when something on the disk has changed, for those who ask often.

Each folder that a scan reads is remembered with its time of modification. As long as all of them are as they were, so
is the list: a new file in an entry, an entry that is gone and a checkpoint that comes all change a folder. A use in
another process changes one file only, which is looked at, too.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from .inventory import Inventory
from .listing import Listed
from .marks import USES_FILE

_UNSURE_NS = 2_000_000_000  # so young a change may hide another one: file systems round their times
Stamp = tuple[int, ...]


@dataclass(frozen=True)
class Snapshot:
    """All graphs at one time.

    Attributes:
        by_id: entries by their ids.
        revision: differs when something of an entry or a folder has changed.
    """

    entries: Sequence[Listed]
    by_id: Mapping[str, Listed]
    revision: str


class Snapshots:
    """Gives the list of all graphs of one user. May be used by several threads.

    Attributes:
        scans: how often all folders were read.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.scans = 0
        self._inventory = inventory
        self._lock = threading.Lock()
        self._last: Snapshot | None = None
        self._of: tuple[str, ...] = ()
        self._watched: list[str] = []
        self._stamp: Stamp = ()
        self._settled = False

    def get(self, folders: Iterable[Path] = ()) -> Snapshot:
        """Give the list of all graphs that are known, and of those beside the checkpoints in folders."""
        of = tuple(sorted(str(folder) for folder in folders))
        with self._lock:  # who comes meanwhile gets the same
            if self._last is None or of != self._of or not self._settled or _stamp(self._watched) != self._stamp:
                self._last, self._of = self._read(of), of
            return self._last

    def _read(self, of: tuple[str, ...]) -> Snapshot:
        self.scans += 1
        began = time.time_ns()
        visited: list[str] = []
        entries = self._inventory.all_entries(map(Path, of), visited)
        self._watched = [*visited, *(os.path.join(one.folder, USES_FILE) for one in entries if one.uses)]  # noqa: PTH118
        self._stamp = _stamp(self._watched)
        self._settled = max(self._stamp, default=0) < began - _UNSURE_NS
        digest = blake3(repr(self._stamp).encode())
        digest.update("\n".join(self._watched).encode(errors="surrogateescape"))
        return Snapshot(entries, {one.id: one for one in entries}, digest.hexdigest(length=8))


def _stamp(paths: Iterable[str]) -> Stamp:
    """When each file or folder was modified; 0 where there is none."""
    found = []
    for path in paths:
        changed = 0
        with contextlib.suppress(OSError):
            changed = os.stat(path).st_mtime_ns  # noqa: PTH116 - thousands of paths
        found.append(changed)
    return tuple(found)
