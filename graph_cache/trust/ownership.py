"""Who may write an entry or a folder: its files, the folder, and whoever can put another one in its place.

The entry's folder and the three above it belong to the store, and nobody else may write them. Of the folders above
those, and of the links that lead to them, the same is asked as sshd's StrictModes does. There a sticky folder such as
`/tmp` may be open to all, since nobody else can rename what is in it, and so may one of a group that has no other
member.

On POSIX systems only. Elsewhere nothing is refused, since the user's profile is closed to others there.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...common.reasons import ForeignOwner, Reason, UnreadableNow, WritableByOthers
from ..files import is_passing

log = logging.getLogger("onegraph.graph_cache")

POSIX = os.name == "posix"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDERS_ABOVE = 3  # component, model hash, and `.graphs` or the user's folder
_MOST_LINKS = 40  # on the way to a folder, as Linux counts

Wrong = ForeignOwner | WritableByOthers


def check(folder: Path) -> Wrong | UnreadableNow | None:
    """Say what of an entry, or of the way to it, others than this user and root own or may write; None: nothing."""
    return _check(folder) or _check_way(folder)


def check_folder(folder: Path) -> Wrong | None:
    """Say who else may write a folder or exchange it for another, by the folders and links that lead to it.

    Raises:
        OSError: nobody can tell.
    """
    if not POSIX:
        return None
    return _check_folder(str(folder)) or _judge_way(str(folder))


def is_own(folder: Path) -> bool:
    """Whether this user owns a folder and can write it, which nobody can on a read-only file system."""
    try:
        owned = not POSIX or folder.stat().st_uid == os.geteuid()
    except OSError:
        return False
    return owned and os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def is_writable(folder: Path) -> bool:
    """As `is_own`; and its mode lets the owner write it, which root is not held to."""
    try:
        return is_own(folder) and bool(folder.stat().st_mode & stat.S_IWUSR)
    except OSError:
        return False


class RefusedError(OSError):
    """A folder or a key must not be used; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


def _check(folder: Path) -> Wrong | UnreadableNow | None:
    if not POSIX:
        return None
    places = [str(folder)]  # commands ask for thousands of folders, and paths would take most of the time
    while len(places) <= _FOLDERS_ABOVE and os.path.dirname(places[0]) not in ("", places[0]):  # noqa: PTH120
        places.insert(0, os.path.dirname(places[0]))  # noqa: PTH120
    name = ""
    try:
        for place in places:
            name = os.path.basename(place)  # noqa: PTH119
            wrong = _check_folder(place)
            if wrong is not None:
                return wrong
        with os.scandir(folder) as found:
            for item in found:
                name = item.name
                wrong = _judge(item.stat(follow_symlinks=False), name)
                if wrong is not None:
                    return wrong
    except OSError as error:
        # What is not there is missed by whoever reads it.
        return UnreadableNow(name, os.strerror(error.errno or 0)) if is_passing(error) else None
    return None


def _check_way(folder: Path) -> Wrong | UnreadableNow | None:
    try:
        return _judge_way(str(folder)) if POSIX else None
    except OSError as error:
        return UnreadableNow(folder.name, os.strerror(error.errno or 0)) if is_passing(error) else None


def _judge_way(folder: str) -> Wrong | None:
    """Say whether others may exchange a folder or a link on the way from the root to a folder. Raises OSError."""
    for name, found in _way(folder):
        if not _is_trusted_on_the_way(found.st_uid):
            return ForeignOwner(owner_name(found.st_uid))
        if not stat.S_ISLNK(found.st_mode) and may_be_exchanged(found):
            return WritableByOthers(name)
    return None


def may_be_exchanged(found: os.stat_result) -> bool:
    """Whether others than this user and root may exchange what is in a folder, which lies on the way to another."""
    if not _is_trusted_on_the_way(found.st_uid):
        return True
    if found.st_mode & stat.S_ISVTX:  # others can rename only what is theirs
        return False
    shared = found.st_mode & stat.S_IWGRP and not is_group_of_one(found.st_gid)
    return bool(shared or found.st_mode & stat.S_IWOTH)


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
        there = os.path.join(here, name)  # noqa: PTH118
        found = os.lstat(there)
        yield name, found
        if not stat.S_ISLNK(found.st_mode):
            here = there
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = Path(there).readlink()
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
        known = [range(int(first), int(first) + int(count)) for first, _, count in map(str.split, lines)]
    except (OSError, ValueError):
        return None
    return None if any(unmapped in numbers for numbers in known) else unmapped


@functools.cache
def is_group_of_one(gid: int) -> bool:
    """Whether a group is known and has no member but this user, as the group that many systems make for each user."""
    try:
        import grp
        import pwd

        name = pwd.getpwuid(os.geteuid()).pw_name
        members = {*grp.getgrgid(gid).gr_mem, *(user.pw_name for user in pwd.getpwall() if user.pw_gid == gid)}
    except (ImportError, KeyError, OSError):
        return False
    return members == {name}


def make_folder(folder: Path) -> None:
    """Make a folder of the store that only this user may write, or see that one that is there is such.

    One of ours that a umask of 002 opened to its group is closed to it. One that is open to all is so on purpose.

    Raises:
        RefusedError: others may write it.
        OSError: it cannot be made.
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
        raise RefusedError(wrong)


def make_anywhere(folder: Path) -> None:
    """As `make_folder`, and on a drive without modes, too, where nothing tells who may write.

    Raises:
        RefusedError: others may write it.
        OSError: it cannot be made.
    """
    try:
        make_folder(folder)
    except RefusedError as error:
        if not (isinstance(error.reason, WritableByOthers) and _has_no_modes(folder)):
            raise


def _has_no_modes(folder: Path) -> bool:
    """Whether a folder lies on a drive that knows no modes: what is made for this user alone is open to all."""
    with tempfile.TemporaryDirectory(prefix=".modes-", dir=folder) as made:
        return bool(Path(made).stat().st_mode & _OTHERS_WRITE)


def make_private(folder: Path) -> None:
    """Make a folder that nobody else may list, write or put another one in the place of.

    Raises:
        RefusedError: others may write it or a folder on the way to it.
        OSError: it cannot be made.
    """
    make_folder(folder.parent)
    make_folder(folder)
    folder.chmod(0o700)
    wrong = check_folder(folder)
    if wrong is not None:
        raise RefusedError(wrong)


def close_file(path: Path) -> None:
    """Take from others the right to write a new file. Raises OSError."""
    mode = path.lstat().st_mode
    if POSIX and stat.S_ISREG(mode) and mode & _OTHERS_WRITE:
        path.chmod(stat.S_IMODE(mode) & ~_OTHERS_WRITE)


def _judge(found: os.stat_result, name: str) -> Wrong | None:
    if found.st_uid not in (0, os.geteuid()):
        return ForeignOwner(owner_name(found.st_uid))
    if not stat.S_ISLNK(found.st_mode) and found.st_mode & _OTHERS_WRITE:  # the mode of a link means nothing
        return WritableByOthers(name)
    return None


def _check_folder(folder: str) -> Wrong | None:
    """A link's own owner counts as well as that of the folder it leads to."""
    found, name = os.lstat(folder), os.path.basename(folder)  # noqa: PTH119
    if stat.S_ISLNK(found.st_mode):
        return _judge(found, name) or _judge(os.stat(folder), name)  # noqa: PTH116
    return _judge(found, name)


def owner_name(uid: int) -> str:
    """Name a user, by number where the system does not know one."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)
