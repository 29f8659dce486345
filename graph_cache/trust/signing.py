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

from ...common.errors import in_brief
from ...common.reasons import SigningKeyRefused, UnknownPublisher, UnreadableNow, Unsigned, Untrusted, WrongSignature
from ..entry import Entry, Unparsed
from ..files import IrregularFileError, OversizedFileError, may_pass, read_regular
from ..manifest import Strict
from . import signing_key
from .publishers import Published, Publishers
from .signing_key import KEY_FILE as KEY_FILE

SIGNATURE_FILE = "signature.json"

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
    """

    publisher: str | None = None


@dataclass(frozen=True)
class Signer:
    """Signs and verifies with one user's key, and knows the publishers whom the user trusts.

    Attributes:
        home: the user's folder, which holds the key.
    """

    home: Path

    def key(self) -> bytes:
        """Give the key; make it if there is none. Raises OSError like `signing_key.obtain`."""
        return signing_key.obtain(self.home)

    def sign(self, manifest: bytes) -> Signature:
        """Sign a manifest's bytes. Raises OSError like `key`."""
        key = self.key()
        return Signature(key=_id(key), value=_hmac(key, manifest))

    def judge(self, entry: Entry | Unparsed) -> Untrusted | UnreadableNow | None:
        """Say why an entry must not be loaded: nobody signed it whom this user trusts."""
        found = self.provenance(entry)
        return None if isinstance(found, Trusted) else found

    def provenance(self, entry: Entry | Unparsed) -> Trusted | Untrusted | UnreadableNow:
        """Say whose an entry is, or why it must not be loaded. Where it lies and who owns it does not matter."""
        why = self._judge(entry.folder, entry.text)
        if why is None:
            return Trusted()
        if isinstance(why, UnreadableNow):
            return why
        published = Publishers(self.home).judge(entry)
        if isinstance(published, Published):
            return Trusted(published.publisher)
        if isinstance(published, UnknownPublisher):
            return published if isinstance(why, Unsigned) else why
        return why if published is None else published

    def judge_unread(self, folder: Path) -> Untrusted | UnreadableNow | None:
        """Say why a folder whose manifest cannot be read was never this user's entry, as far as can be told."""
        return self._judge(folder, None)

    def _judge(self, folder: Path, manifest: bytes | None) -> Untrusted | UnreadableNow | None:
        signature = _read_signature(folder)
        if not isinstance(signature, Signature):
            return signature
        try:
            key = signing_key.read(self.home)
        except OSError as error:
            return UnreadableNow(KEY_FILE, in_brief(error))
        if isinstance(key, SigningKeyRefused):
            return key
        if key is None or not hmac.compare_digest(signature.key, _id(key)):
            return signing_key.refused(self.home) or WrongSignature()
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
        return (
            UnreadableNow(SIGNATURE_FILE, in_brief(error))
            if may_pass(error, folder / SIGNATURE_FILE)
            else WrongSignature()
        )


def _id(key: bytes) -> str:
    return blake3(key).hexdigest(length=4)


def _hmac(key: bytes, manifest: bytes) -> str:
    return hmac.new(key, manifest, "sha256").hexdigest()
