"""Folders held open: what was checked is what is read and changed, whatever others put in its place meanwhile.

A path is looked up anew at each use, so whoever may write one of the folders above can lead it elsewhere between a
check and what follows. A handle leads to the same folder for good, and names in it are used without following links.
Where the system has no such handles (Windows), paths are used, since the user's profile is closed to others there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from . import ownership

_T = TypeVar("_T")
_HANDLES = os.name == "posix" and {os.open, os.stat, os.unlink, os.rmdir, os.rename} <= os.supports_dir_fd
_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_ABOVE = 512  # folders above each other; more than any path has


@dataclass(frozen=True)
class OpenFolder:
    """An open folder.

    Attributes:
        path: by which it was opened.
        handle: None where the system has no handles of folders.
    """

    path: Path
    handle: int | None

    def names(self) -> list[str]:
        """List what is in it, in no order. Raises OSError."""
        return os.listdir(self.path if self.handle is None else self.handle)  # noqa: PTH208

    def stat(self, name: str) -> os.stat_result:
        """Describe what has a name in it, a link itself. Raises OSError."""
        return self._at(lambda at, handle: os.stat(at, dir_fd=handle, follow_symlinks=False), name)

    def reach(self, name: str) -> Path:
        """Give a path to a name in it, for functions that take paths: through the handle where the system can."""
        if self.handle is not None and os.path.isdir("/proc/self/fd"):  # noqa: PTH112
            return Path(f"/proc/self/fd/{self.handle}/{name}")
        return self.path / name

    @contextlib.contextmanager
    def below(self, name: str) -> Iterator[OpenFolder]:
        """Open a folder in it, never through a link. Raises OSError."""
        if self.handle is None:
            if not stat.S_ISDIR(self.stat(name).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.path / name))
            yield OpenFolder(self.path / name, None)
            return
        handle = os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=self.handle)
        try:
            yield OpenFolder(self.path / name, handle)
        finally:
            os.close(handle)

    def unlink(self, name: str) -> None:
        """Remove a file or link. Raises OSError."""
        self._at(lambda at, handle: os.unlink(at, dir_fd=handle), name)

    def rename(self, old: str, new: str) -> None:
        """Give another name in this folder. Raises OSError."""
        if self.handle is None:
            (self.path / old).rename(self.path / new)
        else:
            os.rename(old, new, src_dir_fd=self.handle, dst_dir_fd=self.handle)

    def remove(self, name: str, last: tuple[str, ...] = ()) -> None:
        """Remove a folder with all that is in it, following no link, as far as that works. Never raises OSError.

        Args:
            last: what of its contents goes last, in that order.
        """
        with contextlib.suppress(OSError):
            with self.below(name) as folder:
                names = [found for found in folder.names() if found not in last]
                for found in (*names, *last):
                    with contextlib.suppress(OSError):
                        if stat.S_ISDIR(folder.stat(found).st_mode):
                            folder.remove(found)
                        else:
                            folder.unlink(found)
            self._at(lambda at, handle: os.rmdir(at, dir_fd=handle), name)

    def is_own(self) -> bool:
        """Whether it belongs to this user, and nobody else may write it. Always so without POSIX."""
        found = self._stat_above(0)
        return os.name != "posix" or (found.st_uid == my_id() and not found.st_mode & _OTHERS_WRITE)

    def is_closed(self) -> bool:
        """Whether none but this user and root may exchange what has a name in it, or in a folder above it.

        In a folder with the sticky bit that all may write, such as /tmp, others can rename only what is theirs. The
        folders are those in which this one truly lies, whatever links led to it.
        """
        if os.name != "posix":
            return True
        try:
            found = self._stat_above(0)
            for number in range(1, _MOST_ABOVE):
                if ownership.may_be_exchanged(found):
                    return False
                above = self._stat_above(number)
                if os.path.samestat(found, above):  # the root
                    return True
                found = above
        except OSError:
            return False
        return False

    def _stat_above(self, number: int) -> os.stat_result:
        """Describe the folder that lies so many folders above. Raises OSError."""
        above = "/".join([".."] * number) or "."
        return os.stat(above, dir_fd=self.handle) if self.handle is not None else (self.path / above).stat()

    def _at(self, call: Callable[[str, int | None], _T], name: str) -> _T:
        return call(os.path.join(self.path, name) if self.handle is None else name, self.handle)  # noqa: PTH118


def my_id() -> int:
    """Give the number of this user, as files tell it."""
    return os.geteuid() if os.name == "posix" else 0


@contextlib.contextmanager
def opened(path: Path) -> Iterator[OpenFolder]:
    """Open a folder. Raises OSError."""
    if not _HANDLES:
        path.stat()
        yield OpenFolder(path, None)
        return
    handle = os.open(path, _FLAGS)
    try:
        yield OpenFolder(path, handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def opened_closed(path: Path) -> Iterator[OpenFolder | None]:
    """Open a folder that none but this user and root may exchange; None where it is another one or missing."""
    with contextlib.ExitStack() as held:
        folder = None
        with contextlib.suppress(OSError):
            if not _led_by_others(path):
                folder = held.enter_context(opened(path))
        yield folder if folder is not None and folder.is_closed() else None


def is_closed(path: Path) -> bool:
    """Whether a folder is there that none but this user and root may exchange."""
    with opened_closed(path) as folder:
        return folder is not None


def _led_by_others(path: Path) -> bool:
    """Whether a link on the way belongs to somebody else. Raises OSError."""
    if os.name != "posix":
        return False
    found = [place.lstat() for place in (path, *path.parents)]
    return any(stat.S_ISLNK(one.st_mode) and one.st_uid not in (0, os.geteuid()) for one in found)
