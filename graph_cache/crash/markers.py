"""Crash markers: one file per process while it does what a bad graph could take the process down with.

A marker whose process is gone tells that the process died meanwhile. Markers lie in the user's graph folder, since an
entry's own folder may be read-only: `<home>/<.loading | .capturing>/<entry>/<nonce>`, whose content is the process.

One death may be bad luck: somebody ended the process, or memory ran out. `note_death` makes its marker a record, and
only the next death without a successful call in between condemns the entry.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from ..files import discard
from ..layout import listed_now
from .liveness import is_nonce, is_unfinished, new_nonce, owning, read_owner, state

_LOADING = ".loading"
_CAPTURING = ".capturing"
_RECORDED = ".death"  # suffix of a marker whose death was noted
_MOST_DEATHS = 2


class Markers:
    """The crash markers of one user.

    Args:
        home: the user's graph folder.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def loading(self, folder: Path) -> contextlib.AbstractContextManager[None]:
        """Mark that this process loads an entry or calls it for the first time."""
        return _marked(self._folder(_LOADING, folder))

    def capturing(self, folder: Path) -> contextlib.AbstractContextManager[None]:
        """Mark that this process captures a call of an entry as a CUDA graph."""
        return _marked(self._folder(_CAPTURING, folder))

    def died_while_loading(self, folder: Path) -> bool:
        """Tell whether two processes of this machine ended, one after the other, while they loaded the entry."""
        return len({*_deaths(self._folder(_LOADING, folder)).values()}) >= _MOST_DEATHS

    def died_once_while_loading(self, folder: Path) -> bool:
        """Tell whether any process of this machine ended while it loaded the entry."""
        return bool(_deaths(self._folder(_LOADING, folder)))

    def died_while_capturing(self, folder: Path) -> bool:
        """Tell whether a process of this machine ended while it captured a call of the entry."""
        return bool(_deaths(self._folder(_CAPTURING, folder)))

    def note_death(self, folder: Path) -> bool:
        """Record what dead processes left behind; whether there was anything new."""
        new = [file for file in _deaths(self._folder(_LOADING, folder)) if file.suffix != _RECORDED]
        for marker in new:
            with contextlib.suppress(OSError):  # another process notes it, too, or nothing can be written here
                marker.rename(marker.with_name(marker.name + _RECORDED))
        return bool(new)

    def clear_loading(self, folder: Path) -> None:
        """Forget all deaths, so that the entry in the folder is judged by what comes."""
        location = self._folder(_LOADING, folder)
        # A process that died while it made its marker loaded nothing yet.
        unfinished = [
            location / name for name in listed_now(location) if is_nonce(name) and is_unfinished(location / name)
        ]
        for file in [*_deaths(location), *unfinished]:
            discard(file)

    def _folder(self, activity: str, entry: Path) -> Path:
        return self._home / activity / blake3(os.fsencode(entry.resolve())).hexdigest(length=8)


@contextlib.contextmanager
def _marked(folder: Path) -> Iterator[None]:
    marker = folder / new_nonce()
    with contextlib.suppress(OSError):
        folder.parents[1].mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
    with owning(marker):
        try:
            yield
        finally:
            discard(marker)


def _deaths(folder: Path) -> dict[Path, str]:
    """Return the markers and records of this machine's processes that are gone, and by what each process is known.

    The several markers of one process are one death. Other files, such as a file manager's, are none.
    """
    deaths = {}
    for file in (folder / name for name in listed_now(folder)):
        owner = read_owner(file)
        if owner is not None and owner.is_of_here and (file.suffix == _RECORDED or state(owner, file) == "dead"):
            deaths[file] = owner.process
    return deaths
