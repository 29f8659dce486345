"""What processes that died in the midst of writing left behind: staging folders and temporary files.

Nothing is removed in a folder that somebody else could exchange for another, and nothing by a path that may lead
elsewhere by now: folders are held open while they are judged and emptied.
"""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...common.reasons import WritableByOthers
from ..layout import COPIES_FOLDER, STAGING_PREFIX, user_folder
from ..manifest import MANIFEST_FILE
from ..trust import ownership
from ..trust.open_folder import OpenFolder, is_closed, opened, opened_closed
from .liveness import WRITING_SECONDS, State, is_unfinished, owning, read_owner, runs, state

log = logging.getLogger("onegraph.graph_cache")

OWNER_FILE = ".owner"  # in a staging folder: whose it is

_LAST = (MANIFEST_FILE, OWNER_FILE)  # of a folder that is removed: this process may die meanwhile, and they tell
_STALE_SECONDS = 24 * 3600  # of what has no owner, or one of another machine or container
_TEMPORARY_PREFIX = "onegraph-"  # of folders among other programs' temporary files
_TEMPORARY = re.compile(r"\..+\.json\.([0-9]{1,19})", re.ASCII)


@contextlib.contextmanager
def owned_folder(location: Path | None) -> Iterator[Path]:
    """Make an empty folder that is closed to others; gone when the block ends, or swept when this process has died.

    Args:
        location: where; None: in the system's folder for temporary files, or in the user's where others could
            exchange what lies in that one.

    Raises:
        RefusedError: others could exchange it everywhere.
        OSError: it cannot be made.
    """
    prefix = STAGING_PREFIX
    if location is None:
        location = Path(tempfile.gettempdir())
        if is_closed(location):
            prefix = _TEMPORARY_PREFIX
        else:
            location = user_folder() / COPIES_FOLDER
            ownership.make_private(location)
            if not is_closed(location):
                raise ownership.RefusedError(WritableByOthers(location.name))
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=location))
    try:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(owning(folder / OWNER_FILE))
            except OSError as error:
                log.debug("%s has no owner and goes by its age: %s", folder, error)
            yield folder
    finally:
        with contextlib.suppress(OSError), opened(folder.parent) as parent:
            parent.remove(folder.name, last=_LAST)


def sweep_staging(location: Path) -> None:
    """Remove the staging folders of dead processes. Never raises OSError."""
    with opened_closed(location) as base:
        for name in _names(base):
            if base is not None and name.startswith(STAGING_PREFIX) and _may_go(base, name, _is_left_behind):
                log.debug("removing %s, which a process left behind", location / name)
                base.remove(name, last=_LAST)


def sweep_temporary_folders() -> None:
    """Remove this user's folders of dead processes among the system's temporary files. Never raises OSError."""
    with opened_closed(Path(tempfile.gettempdir())) as base:
        for name in _names(base):
            if base is not None and name.startswith(_TEMPORARY_PREFIX) and _may_go(base, name, _is_dead):
                base.remove(name, last=_LAST)


def sweep_temporaries(location: Path, depth: int = 0) -> None:
    """Remove files whose process died before it renamed them. Never raises OSError.

    Args:
        depth: how many folders further down they lie.
    """
    with opened_closed(location) as base:
        if base is not None:
            _sweep_temporaries(base, depth)


def _sweep_temporaries(folder: OpenFolder, depth: int) -> None:
    for name in _names(folder):
        with contextlib.suppress(OSError):
            if depth and not name.startswith(STAGING_PREFIX):
                with folder.below(name) as inner:
                    if inner.is_own():
                        _sweep_temporaries(inner, depth - 1)
            elif not depth and _is_left_file(folder, name):
                folder.unlink(name)


def _is_left_file(folder: OpenFolder, name: str) -> bool:
    found = _TEMPORARY.fullmatch(name)
    if found is None:
        return False
    age = _age(folder, name)
    return abs(age) > _STALE_SECONDS or (age > WRITING_SECONDS and not runs(int(found[1])))


def _names(folder: OpenFolder | None) -> list[str]:
    try:
        return folder.names() if folder is not None else []
    except OSError:
        return []


def _may_go(base: OpenFolder, name: str, judge: Callable[[OpenFolder], bool]) -> bool:
    with contextlib.suppress(OSError), base.below(name) as folder:
        return folder.is_own() and judge(folder)
    return False


def _is_dead(folder: OpenFolder) -> bool:
    return _state(folder) == "dead"


def _is_left_behind(folder: OpenFolder) -> bool:
    known = _state(folder)
    return known == "dead" or (known == "unknown" and abs(_age(folder, ".")) > _STALE_SECONDS)


def _state(folder: OpenFolder) -> State:
    owner = read_owner(folder.reach(OWNER_FILE))
    if owner is None:
        return "dead" if _is_dead_without_owner(folder) else "unknown"
    return state(owner, folder.reach(OWNER_FILE))


def _is_dead_without_owner(folder: OpenFolder) -> bool:
    """Whether the process died just before it wrote that a folder is its own, or just before the folder's last name.

    An entry loses its owner when it is whole, and then has its own name at once.
    """
    try:
        names = {*folder.names()}
    except OSError:
        return False
    if names == {OWNER_FILE}:
        return is_unfinished(folder.reach(OWNER_FILE))
    return (not names or MANIFEST_FILE in names) and _age(folder, ".") > WRITING_SECONDS


def _age(folder: OpenFolder, name: str) -> float:
    """Seconds since a file or folder was changed, negative after the clock was turned back; 0 when nobody can tell."""
    try:
        return time.time() - folder.stat(name).st_mtime
    except OSError:
        return 0.0
