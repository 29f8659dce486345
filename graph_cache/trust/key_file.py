"""Secret keys of one user: 32 random bytes in a file of mode 0600, made at first use and never replaced.

One that the user names may also be written as 64 hex digits, and, where it belongs to root, be read by others: that is
how container runtimes mount secrets.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
import time
from pathlib import Path

from ...common.reasons import SigningKeyRefused
from ..files import IrregularFileError, discard, open_regular, private, sync
from . import private_folder, windows_acl

_KEY_BYTES = 32
_MOST_BYTES = 1024  # of a file with hex digits and whatever white space is around them
_OF_A_SECRET = windows_acl.READS | windows_acl.WRITES
_WRITING_SECONDS = 1.0  # another process may be writing its key, where the file system has no hard links


def obtain(path: Path) -> bytes:
    """Return a key; make it if there is none.

    Raises:
        OSError: it cannot be made or read, or it is refused.
    """
    key = read(path)
    if key is None:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _make(path)
        key = read(path)
    if isinstance(key, bytes):
        return key
    raise OSError(f"no {path.name}") if key is None else private_folder.RefusedError(key)


def read(path: Path) -> bytes | SigningKeyRefused | None:
    """Read a key; None where there is none. Raises OSError where nobody can tell now."""
    until = time.monotonic() + _WRITING_SECONDS
    while True:
        try:
            with open_regular(path) as file:
                status, key = os.fstat(file.fileno()), file.read(_KEY_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IrregularFileError:
            return SigningKeyRefused("damaged", path.name)
        if not private_folder.POSIX and (wrong := windows_acl.who_else(path, _OF_A_SECRET)):
            return SigningKeyRefused(wrong[0], path.name)
        if private_folder.POSIX and status.st_uid != os.geteuid():
            return SigningKeyRefused("foreign", path.name)
        if private_folder.POSIX and _is_open(status):
            return SigningKeyRefused("open", path.name)
        if len(key) == _KEY_BYTES:
            return key
        if len(key) > _KEY_BYTES or time.time() - status.st_mtime > 60 or time.monotonic() > until:
            return SigningKeyRefused("damaged", path.name)
        time.sleep(0.02)


def _is_open(status: os.stat_result) -> bool:
    """Whether others may read or write a file: anybody, or a group with other members."""
    shared = status.st_mode & stat.S_IRWXG and not private_folder.is_group_of_one(status.st_gid)
    return bool(shared or status.st_mode & stat.S_IRWXO)


def read_given(path: Path) -> bytes | SigningKeyRefused:
    """Read a key that the user named. Links are followed, as a secret's file often is one. Raises OSError."""
    try:
        real = path.resolve(strict=True)
        with open_regular(real) as file:
            status, data = os.fstat(file.fileno()), file.read(_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return SigningKeyRefused("missing", path.name)
    except (IrregularFileError, RuntimeError):  # a circle of links
        return SigningKeyRefused("damaged", path.name)
    if not private_folder.POSIX and (wrong := windows_acl.who_else(real, _OF_A_SECRET)):
        return SigningKeyRefused(wrong[0], path.name)
    if private_folder.POSIX:
        if status.st_uid not in (0, os.geteuid()):
            return SigningKeyRefused("foreign", path.name)
        mounted = status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if (not mounted and _is_open(status)) or private_folder.check(real.parent) is not None:
            return SigningKeyRefused("open", path.name)
    key = data if len(data) == _KEY_BYTES else _from_hex(data)
    return SigningKeyRefused("damaged", path.name) if key is None else key


def _from_hex(data: bytes) -> bytes | None:
    try:
        key = bytes.fromhex(data.decode("ascii"))
    except ValueError:
        return None
    return key if len(key) == _KEY_BYTES else None


def _make(path: Path) -> None:
    """Write a new key, unless another process is faster; then that one's stays. Raises OSError."""
    # `leftovers` knows the name; made with O_EXCL and mode 0600.
    handle, temporary = tempfile.mkstemp(prefix=".signing.", suffix=f".json.{os.getpid()}", dir=path.parent)
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            sync(file.fileno())
        try:
            os.link(temporary, path)  # in one step, and never over another's
        except FileExistsError:
            return
        except OSError:  # no hard links here
            with contextlib.suppress(FileExistsError), open(path, "xb", opener=private) as file:
                file.write(key)
                file.flush()
                sync(file.fileno())
    finally:
        discard(Path(temporary))
