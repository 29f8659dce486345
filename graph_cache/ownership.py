"""Who may write an entry: its files, its folder, and the three folders above it that belong to the store.

On POSIX systems only. Elsewhere nothing is refused, since the user's profile is closed to others there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from ..common.messages import text
from ..common.reasons import ForeignOwner, UnreadableNow, WritableByOthers
from .files import is_passing

log = logging.getLogger("onegraph.graph_cache")

POSIX = os.name == "posix"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDERS_ABOVE = 3  # component, model hash, and `.graphs` or the user's folder


def check(folder: Path) -> ForeignOwner | WritableByOthers | UnreadableNow | None:
    """Say which part of an entry others than this user and root own or may write; None where there is none."""
    return _check(folder, _judge)


def check_modes(folder: Path) -> ForeignOwner | WritableByOthers | UnreadableNow | None:
    """Say which part of an entry others than its owner may write, whoever that is; None where there is none."""
    return _check(folder, _judge_mode)


def is_own(folder: Path) -> bool:
    """Whether this user owns a folder and can write it, which nobody can on a read-only file system."""
    try:
        owned = not POSIX or folder.stat().st_uid == os.geteuid()
    except OSError:
        return False
    return owned and os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


_Judge = Callable[[os.stat_result, str], ForeignOwner | WritableByOthers | None]


def _check(folder: Path, judge: _Judge) -> ForeignOwner | WritableByOthers | UnreadableNow | None:
    if not POSIX:
        return None
    places = [str(folder)]  # commands ask for thousands of folders, and paths would take most of the time
    while len(places) <= _FOLDERS_ABOVE and os.path.dirname(places[0]) not in ("", places[0]):  # noqa: PTH120
        places.insert(0, os.path.dirname(places[0]))  # noqa: PTH120
    name = ""
    try:
        for place in places:
            name = os.path.basename(place)  # noqa: PTH119
            wrong = _check_folder(place, judge)
            if wrong is not None:
                return wrong
        with os.scandir(folder) as found:
            for item in found:
                name = item.name
                wrong = judge(item.stat(follow_symlinks=False), name)
                if wrong is not None:
                    return wrong
    except OSError as error:
        # What is not there is missed by whoever reads it.
        return UnreadableNow(name, os.strerror(error.errno or 0)) if is_passing(error) else None
    return None


def make_folder(folder: Path) -> None:
    """Make a folder of the store that only this user may write, or see that one that is there is such.

    One of ours that a umask of 002 opened to its group is closed to it. One that is open to all is so on purpose.

    Raises:
        OSError: it cannot be made, or others may write it.
    """
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not POSIX:
        return
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & _OTHERS_WRITE == stat.S_IWGRP:
        with contextlib.suppress(OSError):
            folder.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
            log.debug("%s is closed to its group", folder)
    wrong = _check_folder(str(folder))
    if wrong is not None:
        raise OSError(text(wrong))


def make_private(folder: Path) -> None:
    """Make a folder that nobody else may list, in one that only this user may write. Raises OSError."""
    make_folder(folder.parent)
    make_folder(folder)
    folder.chmod(0o700)


def close_file(path: Path) -> None:
    """Take from others the right to write a new file. Raises OSError."""
    mode = path.lstat().st_mode
    if POSIX and stat.S_ISREG(mode) and mode & _OTHERS_WRITE:
        path.chmod(stat.S_IMODE(mode) & ~_OTHERS_WRITE)


def _judge(found: os.stat_result, name: str) -> ForeignOwner | WritableByOthers | None:
    if found.st_uid not in (0, os.geteuid()):
        return ForeignOwner(owner_name(found.st_uid))
    return _judge_mode(found, name)


def _judge_mode(found: os.stat_result, name: str) -> WritableByOthers | None:
    if not stat.S_ISLNK(found.st_mode) and found.st_mode & _OTHERS_WRITE:  # the mode of a link means nothing
        return WritableByOthers(name)
    return None


def _check_folder(folder: str, judge: _Judge = _judge) -> ForeignOwner | WritableByOthers | None:
    """A link's own owner counts as well as that of the folder it leads to."""
    found, name = os.lstat(folder), os.path.basename(folder)  # noqa: PTH119
    if stat.S_ISLNK(found.st_mode):
        return judge(found, name) or judge(os.stat(folder), name)  # noqa: PTH116
    return judge(found, name)


def owner_name(uid: int) -> str:
    """Name a user, by number where the system does not know one."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)
