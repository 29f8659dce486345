"""Reading files that may be anything, and writing files so that they survive a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

# What may be over at the next try: it tells nothing of the file. A lost connection of a network's file system is here
# too, since its files are still there.
_PASSING = frozenset(
    getattr(errno, name)
    for name in (
        "EACCES", "EAGAIN", "EBUSY", "ECONNRESET", "EDQUOT", "EHOSTDOWN", "EHOSTUNREACH", "EINTR", "EIO", "EMFILE",
        "ENETDOWN", "ENETUNREACH", "ENFILE", "ENOBUFS", "ENOLCK", "ENOMEM", "ENOSPC", "ENOTCONN", "EPERM", "EREMOTEIO",
        "ESHUTDOWN", "ESTALE", "ETIMEDOUT",
    )
    if hasattr(errno, name)
)  # fmt: skip
# What some network and FUSE file systems answer to fsync; a disk that is full or failing gives other errors.
_CANNOT_SYNC = {
    errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY, errno.EPERM, errno.EACCES,
    *((errno.EBADF,) if os.name == "nt" else ()),  # Windows syncs no file that is open for reading alone
}  # fmt: skip
_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link, a socket, a folder
# Of an open file: no link is followed, no pipe waited for, and no child process has it.
SAFELY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"))
_JUNCTION = 0xA0000003  # IO_REPARSE_TAG_MOUNT_POINT
HAVE_LOCKS = os.name == "posix"  # Windows removes and moves nothing that is open, as a file with a lock is
# How often, and after how many seconds, for what Windows refuses while somebody has a file open.
_TRIES, _PAUSE = 20, 0.025


class IrregularFileError(OSError):
    """Something else than a regular file: a link, a pipe, a device, a folder."""


class OversizedFileError(OSError):
    """A file is larger than it may be; `size` in bytes, as far as it was read."""

    def __init__(self, size: int) -> None:
        super().__init__(errno.EFBIG, os.strerror(errno.EFBIG))
        self.size = size


def is_passing(error: BaseException | None) -> bool:
    """Tell whether the next try may succeed: too many open files, no memory, a disk or network that failed."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _PASSING)


def may_pass(error: BaseException, path: Path) -> bool:
    """Tell whether reading a file may succeed later; never for one whose mode keeps its own owner out."""
    return is_passing(error) and not _is_closed_to_its_owner(path)


def _is_closed_to_its_owner(path: Path) -> bool:
    """Whether this user owns a file whose mode keeps even this user from reading it, now and later."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        return os.name == "posix" and status.st_uid == os.geteuid() != 0 and not status.st_mode & stat.S_IRUSR
    return False


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Follows no link to one, and never waits for a pipe's other end.

    Raises:
        IrregularFileError: something else has that name.
        OSError: it cannot be opened.
    """
    if not hasattr(os, "O_NOFOLLOW") and path.is_symlink():
        raise IrregularFileError(errno.ELOOP, os.strerror(errno.ELOOP))
    try:
        handle = os.open(path, os.O_RDONLY | SAFELY)
    except OSError as error:
        if os.name == "nt" and path.is_dir():  # which Windows calls forbidden
            raise IrregularFileError(errno.EISDIR, os.strerror(errno.EISDIR)) from error
        if error.errno in _NO_FILE:
            raise IrregularFileError(error.errno, error.strerror) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise IrregularFileError(errno.EINVAL, "not a regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, most: int) -> bytes:
    """Read a regular file of at most that many bytes.

    Raises:
        IrregularFileError: something else has that name.
        OversizedFileError: it is larger.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        # Room is made for what is asked for, and Windows commits it: `most` may be more than the memory has.
        data = b"" if size > most else file.read(size + 1)
        if len(data) > size:  # it grows meanwhile, or the file system tells no sizes
            data += file.read(most + 1 - len(data))
    if max(size, len(data)) > most:
        raise OversizedFileError(max(size, len(data)))
    return data


def write_synced(path: Path, text: str) -> None:
    """Write a text file that nobody else may change, and wait until it is on the disk. Raises OSError."""
    path.unlink(missing_ok=True)  # never through a link, and never into a pipe
    with open(path, "x", encoding="utf-8", newline="", opener=_closed_to_others) as f:  # Windows would write CRLF
        f.write(text)
        f.flush()
        sync(f.fileno())


def _closed_to_others(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)


def private(path: str, flags: int) -> int:
    """Open a file for `open(opener=...)`, which is closed to others where it is a new one."""
    return os.open(path, flags, 0o600)


def replace_text(path: Path, text: str) -> None:
    """Write a text file in one step, so that nobody reads half of it. Raises OSError, with nothing left behind."""
    # `leftovers` knows the name; each process and thread has one of its own.
    temporary = path.with_name(f".{threading.get_ident():x}-{path.name}.{os.getpid()}")
    try:
        write_synced(temporary, text)
        despite_readers(lambda: temporary.replace(path))
    except BaseException:
        discard(temporary)
        raise


def despite_readers(change: Callable[[], object]) -> None:
    """Rename or replace; where Windows refuses that while somebody reads, again for half a second. Raises OSError."""
    for _ in range(_TRIES if os.name == "nt" else 0):
        with contextlib.suppress(PermissionError):
            change()
            return
        time.sleep(_PAUSE)
    change()


def discard(path: Path) -> None:
    """Remove a file, where it is there and can be removed. Never raises OSError."""
    with contextlib.suppress(OSError):
        path.unlink()


def is_plain_folder(status: os.stat_result) -> bool:
    """Tell whether a status that follows no links is a folder's, and not that of a junction, which leads elsewhere."""
    return stat.S_ISDIR(status.st_mode) and getattr(status, "st_reparse_tag", 0) != _JUNCTION


def is_own(path: Path) -> bool:
    """Tell whether a file, folder or link is this user's, as far as the system tells. Never raises OSError."""
    with contextlib.suppress(OSError):
        return os.name != "posix" or path.lstat().st_uid == os.geteuid()
    return False


def lock(handle: int, *, shared: bool) -> None:
    """Lock an open file until it is closed, by the kernel at the latest.

    Raises:
        BlockingIOError: others hold it.
        OSError: there are no locks here.
    """
    if not HAVE_LOCKS:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    import fcntl

    fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def set_mode(path: Path, mode: int) -> None:
    """Set the mode of a file or folder, where the file system knows any. Never raises OSError."""
    with contextlib.suppress(OSError):
        path.chmod(mode)


def sync(handle: int) -> None:
    """Wait until an open file or folder is on the disk, where the file system can. Raises OSError."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def sync_folder(folder: Path) -> None:
    """Wait until a folder's names are on the disk, where the file system can. Raises OSError."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            sync(handle)
        finally:
            os.close(handle)


def nearest(folder: Path) -> Path:
    """Return a folder, or the nearest one above it where it does not exist. Raises OSError, as below a file."""
    for above in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError):
            above.stat()
            return above
    return folder


def free_bytes(folder: Path) -> int | None:
    """Return the bytes that this user can still write on a folder's file system; None when that cannot be told.

    Args:
        folder: it need not exist.
    """
    with contextlib.suppress(OSError):
        return shutil.disk_usage(nearest(folder)).free
    return None


def total_bytes(folder: Path) -> int | None:
    """Return the bytes that a folder's file system has, like `free_bytes`."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(nearest(folder)).total
    return None


def takes_no_more_files(folder: Path) -> bool:
    """Tell whether a folder's file system has room for bytes but for no other file (no inodes left)."""
    with contextlib.suppress(OSError, AttributeError):  # Windows has no such count
        file_system = os.statvfs(nearest(folder))
        return file_system.f_files > 0 and file_system.f_favail == 0  # some file systems count none, and have no limit
    return False
