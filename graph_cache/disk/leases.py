"""Leases: which graphs processes have loaded, so that nobody removes them meanwhile.

A process that loads a graph holds a shared lock on its manifest until it lets go of the graph or ends, however it ends.
Whoever removes a graph takes the same lock alone first, and renames the folder while holding it. So either the loading
process has the graph, or it finds that it is gone. Where the system has no such locks (Windows), the open file does the
same: a folder with one cannot be renamed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ...common.reasons import GraphRemoved
from ..files import HAVE_LOCKS, SAFELY, lock
from ..manifest import MANIFEST_FILE

# unknown: the file system has no locks.
Use = Literal["free", "used", "gone", "unknown"]

# A list asks for each entry whether it is in use, by the same lock as a removal: in one process one after the other.
_asking = threading.RLock()
_TRIES, _PAUSE = 200, 0.005  # seconds: a removal holds the lock for a few milliseconds before its rename


class Lease:
    """A graph in use by this process, until `release` or the end of this object."""

    def __init__(self, handle: int | None = None) -> None:
        self._close = None if handle is None else weakref.finalize(self, os.close, handle)
        if self._close is not None:
            self._close.atexit = False  # the system closes it; by then a fork may have another file of that number

    def release(self) -> None:
        """Let others remove the graph. May be called again."""
        if self._close is not None:
            self._close()


def take(folder: Path) -> Lease | GraphRemoved:
    """Keep an entry from being removed; or tell that it is gone. Never raises OSError.

    An entry that cannot be opened for another cause has a lease that holds nothing: whoever reads it learns why.
    """
    path = folder / MANIFEST_FILE
    for _ in range(_TRIES):
        try:
            handle = os.open(path, os.O_RDONLY | SAFELY)
        except (FileNotFoundError, NotADirectoryError):
            return GraphRemoved()
        except OSError:
            return Lease()
        lease = Lease(handle)
        try:
            lock(handle, shared=True)
        except BlockingIOError:
            lease.release()
            time.sleep(_PAUSE)
            continue
        except OSError:
            return lease
        if _is_at(handle, path):
            return lease
        lease.release()
    return GraphRemoved()


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[Use]:
    """Tell whether an entry is in use, and keep others from using it until the block ends. Never raises OSError."""
    with _asking, contextlib.ExitStack() as held:
        yield _locked(folder / MANIFEST_FILE, held)


def _locked(manifest: Path, held: contextlib.ExitStack) -> Use:
    if not HAVE_LOCKS:
        return "free" if os.path.lexists(manifest.parent) else "gone"
    try:
        handle = _open_to_lock(manifest)
    except OSError:  # without a manifest nobody can have it
        return "free" if os.path.lexists(manifest.parent) and not os.path.lexists(manifest) else "gone"
    held.callback(os.close, handle)
    try:
        lock(handle, shared=False)
    except BlockingIOError:
        return "used"
    except OSError:
        return "unknown"
    return "free" if _is_at(handle, manifest) else "gone"


def use_of(folder: Path) -> Use:
    """Tell whether an entry is in use now."""
    with exclusive(folder) as use:
        return use


def wait_for(handle: int, most: float, pause: float) -> Literal["held", "none", "busy"]:
    """Lock an open file alone until it is closed, trying for `most` seconds. Never raises OSError."""
    until = time.monotonic() + most
    while True:
        try:
            lock(handle, shared=False)
        except BlockingIOError:
            if time.monotonic() >= until:
                return "busy"
            time.sleep(pause)
        except OSError:
            return "none"
        else:
            return "held"


def _open_to_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | SAFELY)  # network file systems give nothing else the lock alone
    except PermissionError:
        return os.open(path, os.O_RDONLY | SAFELY)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))  # noqa: PTH116
    except OSError:
        return False
