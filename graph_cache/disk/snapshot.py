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
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10's is another one
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from .inventory import Inventory
from .listing import Listed

_UNSURE_NS = 2_000_000_000  # so young a change may hide another one: file systems round their times
Stamp = tuple[int, ...]


@dataclass(frozen=True)
class Snapshot:
    """All graphs at one time.

    Attributes:
        by_id: entries by their ids.
        revision: differs when something of an entry or a folder has changed.
        complete: False: the folders are read for the first time, and these are the entries that were found so far.
    """

    entries: Sequence[Listed]
    by_id: Mapping[str, Listed]
    revision: str
    complete: bool = True


class Snapshots:
    """Gives the list of all graphs of one user. May be used by several threads.

    Attributes:
        scans: how often all folders were read.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.scans = 0
        self._inventory = inventory
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._last: Snapshot | None = None
        self._of: tuple[str, ...] = ()
        self._watched: list[str] = []
        self._stamp: Stamp = ()
        self._settled = False
        self._found: list[Listed] = []  # by the reading that is under way
        self._first: Future[Snapshot] | None = None

    def soon(self, folders: Iterable[Path], seconds: float) -> Snapshot:
        """As `get`; where the first reading takes longer than some seconds, with what it found so far."""
        folders = [*folders]
        if self._last is not None:
            return self.get(folders)
        with self._starting:
            first = self._first
            if first is None:
                first = self._first = Future()
                threading.Thread(target=self._read_first, args=(folders, first), daemon=True).start()
        with contextlib.suppress(TimeoutError, FutureTimeoutError):
            return first.result(seconds)
        found = [*self._found]
        return Snapshot(found, {one.id: one for one in found}, f"{len(found)}", complete=False)

    def _read_first(self, folders: list[Path], first: Future[Snapshot]) -> None:
        try:
            first.set_result(self.get(folders))
        except BaseException as error:
            self._first = None  # the next one tries again
            first.set_exception(error)

    def get(self, folders: Iterable[Path] = ()) -> Snapshot:
        """Give the list of all graphs of the home, and of the copies beside the checkpoints in folders."""
        of = tuple(sorted(str(folder) for folder in folders))
        with self._lock:  # who comes meanwhile gets the same
            if self._last is None or of != self._of or not self._settled or _stamp(self._watched) != self._stamp:
                self._last, self._of = self._read(of), of
            return self._last

    def _read(self, of: tuple[str, ...]) -> Snapshot:
        self.scans += 1
        began = time.time_ns()
        visited: list[str] = []
        self._found = []
        entries = self._inventory.scan(map(Path, of), visited, self._found)
        self._watched = visited
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
