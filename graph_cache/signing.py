"""Signatures of entries: HMAC-SHA-256 over the manifest, whose digests cover all files, with a key of each user.

The key lies in the user's folder, outside all entries, and is made at the first publishing. A graph is native code:
only what this user's installation signed is ever loaded, or what a publisher signed whom this user trusts.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blake3 import blake3
from pydantic import Field, ValidationError

from ..common.errors import in_brief
from ..common.reasons import (
    ForeignOwner,
    SigningKeyRefused,
    UnknownPublisher,
    UnreadableNow,
    Unsigned,
    Untrusted,
    WrongSignature,
)
from . import key_file, ownership
from .entry import Entry, Unparsed
from .files import IrregularFileError, OversizedFileError, is_passing, read_regular
from .manifest import Strict
from .publishers import Published, Publishers

SIGNATURE_FILE = "signature.json"
KEY_FILE = "signing.key"

_MOST_BYTES = 4096


class Signature(Strict):
    """Who signed a manifest: the id of the key, and the HMAC."""

    version: Literal[1] = 1
    kind: Literal["hmac-sha256"] = "hmac-sha256"
    key: str = Field(pattern=r"^[0-9a-f]{8}$")
    value: str = Field(pattern=r"^[0-9a-f]{64}$")


@dataclass(frozen=True)
class Trusted:
    """An entry that may be loaded.

    Attributes:
        publisher: who signed it, where this user's installation did not; by the name that this user gave.
        mine: whether this user's processes may change it. Of others' entries only a copy is ever made.
    """

    publisher: str | None = None
    mine: bool = True


@dataclass(frozen=True)
class Signer:
    """Signs and verifies with one user's key, and knows the publishers whom the user trusts.

    Attributes:
        home: the user's folder, which holds the key.
    """

    home: Path

    def key(self) -> bytes:
        """Give the key; make it if there is none. Raises OSError like `key_file.obtain`."""
        return key_file.obtain(self.home / KEY_FILE)

    def sign(self, manifest: bytes) -> Signature:
        """Sign a manifest's bytes. Raises OSError like `key`."""
        key = self.key()
        return Signature(key=_id(key), value=_hmac(key, manifest))

    def mac(self, data: bytes) -> str | None:
        """Give the HMAC of what is no manifest, as hex digits; None where there is no key that counts."""
        try:
            key = key_file.read(self.home / KEY_FILE)
        except OSError:
            return None
        return _hmac(key, b"no manifest\n" + data) if isinstance(key, bytes) else None

    def judge(self, entry: Entry | Unparsed) -> Untrusted | UnreadableNow | None:
        """Say why an entry must not be loaded: others may write it, or nobody signed it whom this user trusts."""
        found = self.provenance(entry)
        return None if isinstance(found, Trusted) else found

    def provenance(self, entry: Entry | Unparsed) -> Trusted | Untrusted | UnreadableNow:
        """Say whose an entry is, or why it must not be loaded.

        What a trusted publisher signed may belong to anybody, since it is loaded from a copy that is compared with the
        signed digests. Nothing is trusted that all may write.
        """
        why = self._judge(entry.folder, entry.text)
        if why is None:
            return Trusted()
        published = Publishers(self.home).judge(entry)
        if isinstance(published, Published):
            return ownership.check_modes(entry.folder) or Trusted(published.publisher, ownership.is_own(entry.folder))
        if published is None or (
            isinstance(published, UnknownPublisher) and not isinstance(why, Unsigned | ForeignOwner)
        ):
            return why
        return published

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
            key = key_file.read(self.home / KEY_FILE)
        except OSError as error:
            return UnreadableNow(KEY_FILE, in_brief(error))
        if isinstance(key, SigningKeyRefused):
            return key
        if key is None or not hmac.compare_digest(signature.key, _id(key)):
            return WrongSignature()
        if manifest is not None and not hmac.compare_digest(signature.value, _hmac(key, manifest)):
            return WrongSignature()
        return None


def _read_signature(folder: Path) -> Signature | Untrusted | UnreadableNow:
    try:
        return Signature.model_validate_json(read_regular(folder / SIGNATURE_FILE, _MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return Unsigned()
    except (IrregularFileError, OversizedFileError, ValidationError):
        return WrongSignature()
    except (OSError, MemoryError) as error:
        return UnreadableNow(SIGNATURE_FILE, in_brief(error)) if is_passing(error) else WrongSignature()


def _id(key: bytes) -> str:
    return blake3(key).hexdigest(length=4)


def _hmac(key: bytes, manifest: bytes) -> str:
    return hmac.new(key, manifest, "sha256").hexdigest()
