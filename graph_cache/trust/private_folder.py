"""Folders that nobody but this user can look into, write, or exchange for others, which is asked when one is used.

Of the folders above a private one, and of the links that lead to it, the same is asked as sshd's StrictModes does.
There a sticky folder such as `/tmp` may be open to all, since nobody else can rename what is in it, and so may one of a
group that has no other member.

On Windows the access list of the folder itself is asked, and not those on the way to it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from ...common.reasons import ForeignOwner, Reason, WritableByOthers
from . import windows_acl

POSIX = os.name == "posix"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # on the way to a folder, as Linux counts

Wrong = ForeignOwner | WritableByOthers


class RefusedError(OSError):
    """A folder or a key must not be used; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


def check(folder: Path) -> Wrong | None:
    """Say who else may write a folder or exchange it for another, by the folders and links that lead to it; or None.

    Raises:
        OSError: nobody can tell.
    """
    if not POSIX:
        wrong = windows_acl.who_else(folder, windows_acl.WRITES)
        foreign = wrong is not None and wrong[0] == "foreign"
        return None if wrong is None else ForeignOwner(wrong[1]) if foreign else WritableByOthers(folder.name)
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()):
        return ForeignOwner(owner_name(status.st_uid))
    if status.st_mode & _OTHERS_WRITE:
        return WritableByOthers(folder.name)
    return _check_way(folder)


def make(folder: Path) -> None:
    """Make a folder that nobody else may list, write or put another one in the place of.

    Raises:
        RefusedError: others may write it or a folder on the way to it.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if POSIX and folder.stat().st_uid == os.geteuid():
        with contextlib.suppress(OSError):  # a file system without modes; then the check tells
            folder.chmod(0o700)
    wrong = check(folder)
    if wrong is not None:
        raise RefusedError(wrong)


def close_to_group(folder: Path) -> None:
    """Take a group's right to write this user's own folder, which a umask of 002 gave. One that is open to all stays.

    Raises:
        OSError: it is not there, or its mode cannot be changed.
    """
    status = folder.stat()
    if POSIX and status.st_uid == os.geteuid() and status.st_mode & _OTHERS_WRITE == stat.S_IWGRP:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~stat.S_IWGRP)


def locate(folder: Path) -> Path:
    """Return the folder that is used for a private one: itself where it is, or can be made, this user's alone.

    Else it is one among the system's temporary files, of the same user and for the same folder. Changes nothing.
    """
    nearest = next((above for above in (folder, *folder.parents) if os.path.lexists(above)), folder)
    with contextlib.suppress(OSError):
        if _can_be_private(nearest, nearest == folder):
            return folder
    name = blake3(os.fsencode(os.path.abspath(folder))).hexdigest(length=4)  # noqa: PTH100
    return Path(tempfile.gettempdir()) / f"onegraph-{os.geteuid() if POSIX else 0}-{name}"


def _can_be_private(folder: Path, itself: bool) -> bool:
    """Whether a folder is private, or one in it would be. Raises OSError."""
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return False
    if not POSIX:
        return not itself or check(folder) is None
    status = folder.stat()
    if itself and (status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH):
        return False
    if not itself and may_be_exchanged(status):
        return False
    return _check_way(folder, above=itself) is None


def _check_way(folder: Path, above: bool = True) -> Wrong | None:
    """Say who may exchange a folder or a link on the way from the root to a folder. Raises OSError.

    Args:
        above: False: also what is in the folder itself.
    """
    way = [*_way(str(folder))]
    for name, status in way[: -1 if above else None]:
        if not _is_trusted_on_the_way(status.st_uid):
            return ForeignOwner(owner_name(status.st_uid))
        if not stat.S_ISLNK(status.st_mode) and may_be_exchanged(status):
            return WritableByOthers(name)
    return None


def may_be_exchanged(status: os.stat_result) -> bool:
    """Tell whether others than this user and root may exchange what is in a folder on the way to another."""
    if not _is_trusted_on_the_way(status.st_uid):
        return True
    if status.st_mode & stat.S_ISVTX:  # others can rename only what is theirs
        return False
    shared = status.st_mode & stat.S_IWGRP and not is_group_of_one(status.st_gid)
    return bool(shared or status.st_mode & stat.S_IWOTH)


def _way(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Walk to a folder as the system does. Yields the name of each folder and link, itself too. Raises OSError."""
    names = [*(Path.cwd() / folder).parts[:0:-1]]  # to be followed, not resolved: each link counts
    here, links = os.sep, 0
    yield here, os.lstat(here)
    while names:
        name = names.pop()
        if name == os.pardir:
            here = os.path.dirname(here)  # noqa: PTH120
            continue
        path = os.path.join(here, name)  # noqa: PTH118
        status = os.lstat(path)
        yield name, status
        if not stat.S_ISLNK(status.st_mode):
            here = path
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = Path(path).readlink()
        here = os.sep if target.is_absolute() else here
        names += target.parts[: 0 if target.is_absolute() else None : -1]


def _is_trusted_on_the_way(uid: int) -> bool:
    return uid in (0, os.geteuid()) or uid == _unmapped_uid()


@functools.cache
def _unmapped_uid() -> int | None:
    """The number that stands for root, too, in a container that knows no other user than its own; None elsewhere."""
    try:
        unmapped = int(Path("/proc/sys/fs/overflowuid").read_text())
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        mapped = [range(int(first), int(first) + int(count)) for first, _, count in map(str.split, lines)]
    except (OSError, ValueError):
        return None
    return None if any(unmapped in numbers for numbers in mapped) else unmapped


@functools.cache
def is_group_of_one(gid: int) -> bool:
    """Tell whether a group has no member but this user, as the group that many systems make for each user."""
    try:
        import grp
        import pwd

        name = pwd.getpwuid(os.geteuid()).pw_name
        members = {*grp.getgrgid(gid).gr_mem, *(user.pw_name for user in pwd.getpwall() if user.pw_gid == gid)}
    except (ImportError, KeyError, OSError):
        return False
    return members == {name}


def owner_name(uid: int) -> str:
    """Return the name of a user, or the number where the system knows no name."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)
