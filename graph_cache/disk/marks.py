"""Marks beside a graph that no signature is over: when it was last used, how often, and whether it is pinned.

`.uses` has one byte for each time that a process restored the graph, and its time of modification is the last use. One
byte is appended in one step, so that processes need no lock. `.pinned` is empty. Neither decides what is loaded.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Literal

from ..trust import ownership

USES_FILE = ".uses"
PIN_FILE = ".pinned"
FETCHED_FILE = ".fetched"  # it came from a remote store, which has it for whoever removes it

_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"))


def note_use(folder: Path, how: Literal["compiled", "restored"]) -> None:
    """Record that this process loaded an entry, which counts where it was restored. Never raises OSError.

    Nothing is written beside a graph that this user does not own.
    """
    if not ownership.is_writable(folder):
        return
    with contextlib.suppress(OSError):
        handle = os.open(folder / USES_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FLAGS, 0o644)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # others put it there: it is something else, too
                return
            if how == "restored":
                os.write(handle, b".")
            os.utime(folder / USES_FILE if os.utime not in os.supports_fd else handle)
        finally:
            os.close(handle)


def pin(folder: Path) -> None:
    """Keep an entry until it is unpinned. Raises OSError."""
    os.close(os.open(folder / PIN_FILE, os.O_WRONLY | os.O_CREAT | _FLAGS, 0o644))


def unpin(folder: Path) -> None:
    """Take a pin away, if there is one. Raises OSError."""
    (folder / PIN_FILE).unlink(missing_ok=True)
