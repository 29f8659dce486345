"""Secret keys of one user: 32 random bytes in a file of mode 0600, made at first use and never replaced."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
import time
from pathlib import Path

from ..common.messages import text
from ..common.reasons import SigningKeyRefused
from . import ownership
from .files import IrregularFileError, open_regular

_KEY_BYTES = 32
_WRITING_SECONDS = 1.0  # another process may be writing its key, where the file system has no hard links


def obtain(path: Path) -> bytes:
    """Give a key; make it if there is none.

    Raises:
        OSError: it cannot be made or read, or it is refused.
    """
    found = read(path)
    if found is None:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _make(path)
        found = read(path)
    if isinstance(found, bytes):
        return found
    raise OSError(text(found) if found is not None else f"no {path.name}")


def read(path: Path) -> bytes | SigningKeyRefused | None:
    """Read a key; None where there is none. Raises OSError where nobody can tell now."""
    until = time.monotonic() + _WRITING_SECONDS
    while True:
        try:
            with open_regular(path) as file:
                found, key = os.fstat(file.fileno()), file.read(_KEY_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IrregularFileError:
            return SigningKeyRefused("damaged", path.name)
        if ownership.POSIX and found.st_uid != os.geteuid():
            return SigningKeyRefused("foreign", path.name)
        if ownership.POSIX and stat.S_IMODE(found.st_mode) & 0o077:
            return SigningKeyRefused("open", path.name)
        if len(key) == _KEY_BYTES:
            return key
        if len(key) > _KEY_BYTES or time.time() - found.st_mtime > 60 or time.monotonic() > until:
            return SigningKeyRefused("damaged", path.name)
        time.sleep(0.02)


def _make(path: Path) -> None:
    """Write a new key, unless another process is faster; then that one's stays. Raises OSError."""
    # `leftovers` knows the name; made with O_EXCL and mode 0600.
    handle, temporary = tempfile.mkstemp(prefix=".signing.", suffix=f".json.{os.getpid()}", dir=path.parent)
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # in one step, and never over another's
        except FileExistsError:
            return
        except OSError:  # no hard links here
            with contextlib.suppress(FileExistsError), open(path, "xb", opener=_private) as file:
                file.write(key)
                file.flush()
                os.fsync(file.fileno())
    finally:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
