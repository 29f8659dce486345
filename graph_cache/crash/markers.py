"""Crash markers: one file per process while it does what a bad graph could take the process down with.

A marker whose process is gone tells that the process died meanwhile. Markers lie in the user's graph folder, since an
entry's own folder may be read-only: `<home>/<.loading | .capturing>/<machine>-<entry>/<nonce>`, whose content is the
process.

One death may be bad luck: somebody ended the process, or memory ran out. `note_death` makes its marker a record, and
only the next death without a successful call in between condemns the entry.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from ..layout import machine_id
from .liveness import Owner, is_nonce, is_unfinished, new_nonce, owning, read_owner, state, this_process

log = logging.getLogger("onegraph.graph_cache")

_LOADING = ".loading"
_CAPTURING = ".capturing"
_RECORDED = ".death"  # suffix of a marker whose death was noted
_MOST_DEATHS = 2


@dataclass(frozen=True)
class _Death:
    """What a dead process left behind.

    Attributes:
        process: by which the several markers of one process are one death.
        recorded: whether a later process noted it.
    """

    file: Path
    process: Owner
    recorded: bool


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
        """Whether two processes of this machine ended, one after the other, while they loaded the entry."""
        return len({death.process for death in _deaths(self._folder(_LOADING, folder))}) >= _MOST_DEATHS

    def died_once_while_loading(self, folder: Path) -> bool:
        """Whether any process of this machine ended while it loaded the entry."""
        return bool(_deaths(self._folder(_LOADING, folder)))

    def died_while_capturing(self, folder: Path) -> bool:
        """Whether a process of this machine ended while it captured a call of the entry."""
        return bool(_deaths(self._folder(_CAPTURING, folder)))

    def note_death(self, folder: Path) -> bool:
        """Record what dead processes left behind; whether there was anything new."""
        new = [death.file for death in _deaths(self._folder(_LOADING, folder)) if not death.recorded]
        for marker in new:
            with contextlib.suppress(OSError):  # another process notes it, too, or nothing can be written here
                marker.rename(marker.with_name(marker.name + _RECORDED))
        return bool(new)

    def clear_loading(self, folder: Path) -> None:
        """Forget all deaths, so that the entry in the folder is judged by what comes."""
        place = self._folder(_LOADING, folder)
        for file in [*(death.file for death in _deaths(place)), *_unfinished(place)]:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def _folder(self, activity: str, entry: Path) -> Path:
        name = blake3(os.fsencode(entry.resolve())).hexdigest(length=8)
        return self._home / activity / f"{machine_id()}-{name}"


@contextlib.contextmanager
def _marked(folder: Path) -> Iterator[None]:
    marker = folder / new_nonce()
    with contextlib.ExitStack() as held:
        try:
            folder.parents[1].mkdir(mode=0o755, parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(owning(marker))
        except OSError as error:
            log.debug("no crash marker %s: %s", marker, error)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                marker.unlink(missing_ok=True)


def _deaths(folder: Path) -> list[_Death]:
    """The markers and records of processes that are gone. Other files, such as a file manager's, are none.

    A container may have another name at each start, so that its markers lie in another folder; the machine's boot
    tells that it ran here.
    """
    here = this_process()
    found = _deaths_in(folder)
    for other in folder.parent.glob("*-" + folder.name.rpartition("-")[2]):
        if other != folder:
            found += [death for death in _deaths_in(other) if death.process.boot == here.boot != ""]
    return found


def _deaths_in(folder: Path) -> list[_Death]:
    try:
        found = [_death(file) for file in folder.iterdir()]
    except OSError:
        return []
    return [death for death in found if death is not None]


def _unfinished(folder: Path) -> list[Path]:
    """Markers of processes that died while they made them, and loaded nothing yet."""
    try:
        return [file for file in folder.iterdir() if is_nonce(file.name) and is_unfinished(file)]
    except OSError:
        return []


def _death(file: Path) -> _Death | None:
    recorded = file.name.endswith(_RECORDED)
    owner = read_owner(file)
    if owner is None or not (recorded or state(owner, file) == "dead"):
        return None
    return _Death(file, owner, recorded)
