"""Crash markers: one file per process while it does what a bad graph could take the process down with.

A marker whose process is gone tells that the process died meanwhile. Markers lie in the user's graph folder, since an
entry's own folder may be read-only: `<home>/<.loading | .recording>/<machine>-<entry>/<process id>`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from .layout import machine_id

log = logging.getLogger("onegraph.graph_cache")

_LOADING = ".loading"
_CAPTURING = ".recording"  # its name on disk since before these calls were named captures


class Markers:
    """The crash markers of one user.

    Args:
        home: the user's graph folder.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def loading(self, folder: Path) -> contextlib.AbstractContextManager[None]:
        """Mark that this process loads an entry or calls it for the first time."""
        return self._marked(self._folder(_LOADING, folder))

    def capturing(self, folder: Path) -> contextlib.AbstractContextManager[None]:
        """Mark that this process captures a call of an entry as a CUDA graph."""
        return self._marked(self._folder(_CAPTURING, folder))

    def died_while_loading(self, folder: Path) -> bool:
        """Whether a process of this machine ended while it loaded the entry."""
        return bool(_left_behind(self._folder(_LOADING, folder)))

    def died_while_capturing(self, folder: Path) -> bool:
        """Whether a process of this machine ended while it captured a call of the entry."""
        return bool(_left_behind(self._folder(_CAPTURING, folder)))

    def clear_loading(self, folder: Path) -> None:
        """Remove what dead processes left behind, so that the next entry in the folder is judged by itself."""
        for marker in _left_behind(self._folder(_LOADING, folder)):
            with contextlib.suppress(OSError):
                marker.unlink(missing_ok=True)

    def _folder(self, activity: str, entry: Path) -> Path:
        name = blake3(str(entry.resolve()).encode()).hexdigest(length=8)
        return self._home / activity / f"{machine_id()}-{name}"

    @contextlib.contextmanager
    def _marked(self, folder: Path) -> Iterator[None]:
        marker = folder / str(os.getpid())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            marker.touch()
        except OSError as error:
            log.debug("no crash marker %s: %s", marker, error)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                marker.unlink(missing_ok=True)


def _left_behind(folder: Path) -> list[Path]:
    """The markers whose processes are gone. Other files, such as a file manager's, are none."""
    try:
        return [marker for marker in folder.iterdir() if marker.name.isdecimal() and not _alive(int(marker.name))]
    except OSError:
        return []


def _alive(pid: int) -> bool:
    """Whether a process of that id runs; True when that cannot be told."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
