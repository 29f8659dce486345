"""What processes that died in the midst of writing left behind: staging folders and temporary files."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from .layout import STAGING_PREFIX
from .liveness import WRITING_SECONDS, State, is_unfinished, owning, read_owner, runs, state
from .manifest import MANIFEST_FILE

log = logging.getLogger("onegraph.graph_cache")

OWNER_FILE = ".owner"  # in a staging folder: whose it is

_STALE_SECONDS = 24 * 3600  # of what has no owner, or one of another machine or container
_TEMPORARY_PREFIX = "onegraph-"  # of folders among other programs' temporary files
_TEMPORARY = re.compile(r"\..+\.json\.([0-9]{1,19})", re.ASCII)


@contextlib.contextmanager
def owned_folder(location: Path | None) -> Iterator[Path]:
    """Make an empty folder that is closed to others; gone when the block ends, or swept when this process has died.

    Args:
        location: where; None: in the system's folder for temporary files.

    Raises:
        OSError: it cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX if location is None else STAGING_PREFIX, dir=location))
    try:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(owning(folder / OWNER_FILE))
            except OSError as error:
                log.debug("%s has no owner and goes by its age: %s", folder, error)
            yield folder
    finally:
        _remove(folder)


def sweep_staging(location: Path) -> None:
    """Remove the staging folders of dead processes. Never raises OSError."""
    for folder in _found(location.glob(STAGING_PREFIX + "*")):
        if _is_left_behind(folder):
            log.debug("removing %s, which a process left behind", folder)
            _remove(folder)


def sweep_temporary_folders() -> None:
    """Remove this user's folders of dead processes among the system's temporary files. Never raises OSError."""
    for folder in _found(Path(tempfile.gettempdir()).glob(_TEMPORARY_PREFIX + "*")):
        if _is_own(folder) and _state(folder) == "dead":
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder, last what tells that it may go, for this process may die meanwhile."""
    if folder.is_symlink():
        return
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name in (OWNER_FILE, MANIFEST_FILE):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def sweep_temporaries(paths: Iterable[Path]) -> None:
    """Remove those of the files whose process died before it renamed them. Never raises OSError."""
    for path in _found(paths):
        name = _TEMPORARY.fullmatch(path.name)
        if name is None:
            continue
        age = _age(path)
        if abs(age) > _STALE_SECONDS or (age > WRITING_SECONDS and not runs(int(name[1]))):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _is_left_behind(folder: Path) -> bool:
    known = _state(folder)
    return known == "dead" or (known == "unknown" and abs(_age(folder)) > _STALE_SECONDS)


def _state(folder: Path) -> State:
    owner = read_owner(folder / OWNER_FILE)
    if owner is None:
        return "dead" if _is_dead_without_owner(folder) else "unknown"
    return state(owner, folder / OWNER_FILE)


def _is_dead_without_owner(folder: Path) -> bool:
    """Whether the process died just before it wrote that a folder is its own, or just before the folder's last name.

    An entry loses its owner when it is whole, and then has its own name at once.
    """
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError:
        return False
    if names == {OWNER_FILE}:
        return is_unfinished(folder / OWNER_FILE)
    return (not names or MANIFEST_FILE in names) and _age(folder) > WRITING_SECONDS


def _is_own(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and (os.name != "posix" or found.st_uid == os.geteuid())


def _age(path: Path) -> float:
    """Seconds since a file or folder was changed, negative after the clock was turned back; 0 when nobody can tell."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _found(paths: Iterable[Path]) -> list[Path]:
    try:
        return list(paths)
    except OSError:
        return []
