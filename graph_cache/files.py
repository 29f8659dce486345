"""Writing files so that they survive a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

# What some network and FUSE file systems answer to the fsync of a folder.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


def write_synced(path: Path, text: str) -> None:
    """Write a text file and wait until it is on the disk. Raises OSError."""
    with path.open("w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())


def replace_text(path: Path, text: str) -> None:
    """Write a text file in one step, so that nobody reads half of it. Raises OSError, with nothing left behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")  # `leftovers` knows the name
    try:
        write_synced(temporary, text)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until a folder's names are on the disk, where the file system can. Raises OSError."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise
        finally:
            os.close(handle)


def free_bytes(folder: Path) -> int | None:
    """Bytes that this user can still write on a folder's file system; None when that cannot be told.

    Args:
        folder: it need not exist.
    """
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
