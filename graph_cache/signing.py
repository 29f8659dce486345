"""Signatures of entries: HMAC-SHA-256 over the manifest, whose digests cover all files, with a key of each user.

The key lies in the user's folder, outside all entries, and is made at the first publishing. A graph is native code:
only what this user's installation signed is ever loaded.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blake3 import blake3
from pydantic import Field, ValidationError

from ..common.errors import in_brief
from ..common.messages import text
from ..common.reasons import SigningKeyRefused, UnreadableNow, Unsigned, Untrusted, WrongSignature
from . import ownership
from .entry import Entry
from .files import IrregularFileError, OversizedFileError, is_passing, open_regular, read_regular
from .manifest import Strict

SIGNATURE_FILE = "signature.json"
KEY_FILE = "signing.key"

_KEY_BYTES = 32
_MOST_BYTES = 4096
_WRITING_SECONDS = 1.0  # another process may be writing its key, where the file system has no hard links


class Signature(Strict):
    """Who signed a manifest: the id of the key, and the HMAC."""

    version: Literal[1] = 1
    kind: Literal["hmac-sha256"] = "hmac-sha256"
    key: str = Field(pattern=r"^[0-9a-f]{8}$")
    value: str = Field(pattern=r"^[0-9a-f]{64}$")


@dataclass(frozen=True)
class Signer:
    """Signs and verifies with one user's key.

    Attributes:
        home: the user's folder, which holds the key.
    """

    home: Path

    def key(self) -> bytes:
        """Give the key; make it if there is none.

        Raises:
            OSError: it cannot be made or read, or it is refused.
        """
        found = self._read()
        if found is None:
            self.home.mkdir(mode=0o755, parents=True, exist_ok=True)
            _make(self.home / KEY_FILE)
            found = self._read()
        if isinstance(found, bytes):
            return found
        raise OSError(text(found) if found is not None else f"no {KEY_FILE}")

    def sign(self, manifest: bytes) -> Signature:
        """Sign a manifest's bytes. Raises OSError like `key`."""
        key = self.key()
        return Signature(key=_id(key), value=_hmac(key, manifest))

    def judge(self, entry: Entry) -> Untrusted | UnreadableNow | None:
        """Say why an entry must not be loaded: others may write it, or it is not signed by this user; else None."""
        return self._judge(entry.folder, entry.text)

    def judge_unread(self, folder: Path) -> Untrusted | UnreadableNow | None:
        """Say why a folder whose manifest cannot be read was never this user's entry, as far as can be told."""
        return self._judge(folder, None)

    def _judge(self, folder: Path, manifest: bytes | None) -> Untrusted | UnreadableNow | None:
        wrong = ownership.check(folder)
        if wrong is not None:
            return wrong
        signature = _read_signature(folder)
        if not isinstance(signature, Signature):
            return signature
        try:
            key = self._read()
        except OSError as error:
            return UnreadableNow(KEY_FILE, in_brief(error))
        if isinstance(key, SigningKeyRefused):
            return key
        if key is None or not hmac.compare_digest(signature.key, _id(key)):
            return WrongSignature()
        if manifest is not None and not hmac.compare_digest(signature.value, _hmac(key, manifest)):
            return WrongSignature()
        return None

    def _read(self) -> bytes | SigningKeyRefused | None:
        """Read the key; None where there is none. Raises OSError where nobody can tell now."""
        until = time.monotonic() + _WRITING_SECONDS
        while True:
            try:
                with open_regular(self.home / KEY_FILE) as file:
                    found, key = os.fstat(file.fileno()), file.read(_KEY_BYTES + 1)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except IrregularFileError:
                return SigningKeyRefused("damaged")
            if ownership.POSIX and found.st_uid != os.geteuid():
                return SigningKeyRefused("foreign")
            if ownership.POSIX and stat.S_IMODE(found.st_mode) & 0o077:
                return SigningKeyRefused("open")
            if len(key) == _KEY_BYTES:
                return key
            if len(key) > _KEY_BYTES or time.time() - found.st_mtime > 60 or time.monotonic() > until:
                return SigningKeyRefused("damaged")
            time.sleep(0.02)


def _read_signature(folder: Path) -> Signature | Untrusted | UnreadableNow:
    try:
        return Signature.model_validate_json(read_regular(folder / SIGNATURE_FILE, _MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return Unsigned()
    except (IrregularFileError, OversizedFileError, ValidationError):
        return WrongSignature()
    except (OSError, MemoryError) as error:
        return UnreadableNow(SIGNATURE_FILE, in_brief(error)) if is_passing(error) else WrongSignature()


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


def _id(key: bytes) -> str:
    return blake3(key).hexdigest(length=4)


def _hmac(key: bytes, manifest: bytes) -> str:
    return hmac.new(key, manifest, "sha256").hexdigest()
