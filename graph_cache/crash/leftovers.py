"""What processes that died in the midst of writing left behind: folders and temporary files.

Nothing is removed in a folder that somebody else could exchange for another.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ...common.log import logger
from ..files import discard, is_own, is_plain_folder
from ..layout import STAGING_FOLDER, listed_now, user_folder
from ..manifest import MANIFEST_FILE
from ..trust import private_folder
from .liveness import WRITING_SECONDS, OwnerState, is_unfinished, owning, read_owner, state

log = logger("graph_cache")

OWNER_FILE = ".owner"  # in a folder of `owned_folder`: whose it is

_STALE_SECONDS = 24 * 3600  # of what has no owner, or one of another machine or container
_TEMPORARY_PREFIX = "onegraph-"  # of folders among other programs' temporary files
_TEMPORARY = re.compile(r"\..+\.json\.[0-9]{1,19}", re.ASCII)  # of `replace_text`


@contextlib.contextmanager
def owned_folder(location: Path | None) -> Iterator[Path]:
    """Make an empty folder that is closed to others; gone when the block ends, or swept when this process has died.

    Args:
        location: where, a private folder; None: in the system's folder for temporary files, or in the home where
            others could exchange what lies in that one.

    Raises:
        RefusedError: others could exchange it everywhere.
        OSError: it cannot be made.
    """
    prefix = "s-"
    if location is None:
        location, prefix = Path(tempfile.gettempdir()), _TEMPORARY_PREFIX
        if private_folder.locate(location / prefix) != location / prefix:
            location, prefix = private_folder.locate(user_folder()) / STAGING_FOLDER, "s-"
            private_folder.make(location)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=location))
    try:
        with owning(folder / OWNER_FILE):
            yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder. Never raises OSError.

    The files by which `sweep` knows it go last, should this process die meanwhile.
    """
    for path in (folder / name for name in listed_now(folder)):
        if _is_folder(path):
            shutil.rmtree(path, ignore_errors=True)  # which would wait for the other end of a pipe
        elif path.name not in (OWNER_FILE, MANIFEST_FILE):
            discard(path)
    shutil.rmtree(folder, ignore_errors=True)


def sweep(home: Path, graphs: Path) -> None:
    """Remove what dead processes left in the home and among the system's temporary files. Never raises OSError.

    Args:
        graphs: the folder with the graphs, which is closed to others.
    """
    for folder in filter(is_left_behind, _folders(home / STAGING_FOLDER)):
        log.debug("removing %s, which a process left behind", folder)
        remove(folder)
    temporary = Path(tempfile.gettempdir())
    mine = temporary / _TEMPORARY_PREFIX
    for folder in _folders(temporary) if private_folder.locate(mine) == mine else ():
        if folder.name.startswith(_TEMPORARY_PREFIX) and is_own(folder) and _state(folder) == "dead":
            remove(folder)
    for folder in (home, *graphs.glob("*/*")):
        for file in (folder / name for name in listed_now(folder) if _TEMPORARY.fullmatch(name)):
            if not -_STALE_SECONDS < _age(file) < WRITING_SECONDS:
                discard(file)


def _folders(location: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in location.iterdir() if _is_folder(path)]
    return []


def _is_folder(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return is_plain_folder(path.lstat())
    return False


def is_left_behind(folder: Path) -> bool:
    """Tell whether the process that wrote into a folder has died, as its owner tells or else its age."""
    how = _state(folder)
    return how == "dead" or (how == "unknown" and abs(_age(folder)) > _STALE_SECONDS)


def _state(folder: Path) -> OwnerState:
    owner = read_owner(folder / OWNER_FILE)
    if owner is not None:
        return state(owner, folder / OWNER_FILE)
    return "dead" if _is_dead_without_owner(folder) else "unknown"


def _is_dead_without_owner(folder: Path) -> bool:
    """Whether the process died just before it wrote that a folder is its own, or just before the folder's last name.

    An entry loses its owner when it is whole, and then has its own name at once; one that is removed has none.
    """
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError:
        return False
    if names == {OWNER_FILE}:
        return is_unfinished(folder / OWNER_FILE)
    return (not names or MANIFEST_FILE in names) and _age(folder) > WRITING_SECONDS


def _age(path: Path) -> float:
    """Seconds since a file or folder was changed, negative after the clock was turned back; 0 when nobody can tell."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0
