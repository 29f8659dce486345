"""Where a new entry is put together: a folder on the file system of the model's graphs, or of the user's."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from .crash import leftovers
from .files import despite_removals, free_bytes
from .private_copy import ROOM
from .trust import ownership

log = logging.getLogger("onegraph.graph_cache")

_LEAST_ROOM = 1 << 20  # bytes; with less, nothing is compiled
_T = TypeVar("_T")


def find_location(locations: Sequence[Path]) -> Path:
    """Give the first location that can be written and has room; see `staging`. It is left as it was.

    Raises:
        OSError: there is none.
    """
    for location in locations:
        leftovers.sweep_staging(location)
    location = _in_first(locations, lambda location: location)
    _remove_empty(location)
    return location


@contextlib.contextmanager
def staging(locations: Sequence[Path]) -> Iterator[Path]:
    """Yield an empty folder in the first location that can be written and has room; it is gone when the block ends.

    Where none has room, it is the first that can be written and is not full.

    Raises:
        OSError: there is none.
    """
    for location in locations:
        leftovers.sweep_staging(location)
    with contextlib.ExitStack() as held:
        yield _in_first(locations, lambda location: held.enter_context(_staged(location)))


@contextlib.contextmanager
def _staged(location: Path) -> Iterator[Path]:
    try:
        with leftovers.owned_folder(location) as folder:
            yield folder
    finally:
        _remove_empty(location)


def _remove_empty(location: Path) -> None:
    for empty in (location, location.parent):
        with contextlib.suppress(OSError):
            empty.rmdir()


def _in_first(locations: Sequence[Path], use: Callable[[Path], _T]) -> _T:
    """Return what `use` makes in the first location that can be written. Raises OSError where there is none."""
    last: OSError | None = None
    full: list[Path] = []
    refused: list[Path] = []
    for location in locations:
        free = free_bytes(location)
        if free is not None and free < ROOM:
            full.append(location)
            log.debug("%d bytes are free in %s", free, location)
            continue
        try:
            return _made(location, use)
        except OSError as error:
            last = error
            refused += [location] if isinstance(error, ownership.RefusedError) else []
            log.debug("cannot store graphs in %s: %s", location, error)
    for location in full:
        if (free_bytes(location) or 0) < _LEAST_ROOM:  # nothing would fit, not even a note that it was tried in vain
            last = last or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            continue
        try:
            return _made(location, use)
        except OSError as error:
            last = error
    for location in refused:
        with contextlib.suppress(OSError):
            return _made(location, use, ownership.make_anywhere)
    raise last or OSError("no folder for graphs")


def _made(location: Path, use: Callable[[Path], _T], make: Callable[[Path], None] = ownership.make_folder) -> _T:
    """Make a location, try whether this user can write it, and nobody else as far as the drive knows, and use it."""

    def made() -> _T:
        for folder in (location.parent, location):
            make(folder)
        with tempfile.TemporaryFile(dir=location):
            pass
        return use(location)

    return despite_removals(made)
