"""Signatures of entries: HMAC-SHA-256 over the manifest, whose digests cover all files, with a key of each user.

A graph is native code: only what this user's installation signed is ever loaded, or what a publisher signed whom this
user trusts. Who signed the bytes of a manifest is asked before anything of it is parsed.

The key is the file that `ONEGRAPH_SIGNING_KEY` names, such as a container's secret, and then no other. Else it is
`signing.key` in the graph folder; or in the user's folder for settings, where the graph folder cannot keep a secret: it
cannot be written, or all may read what is on its drive. It is made at the first publishing.
"""

from __future__ import annotations

import contextlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blake3 import blake3
from pydantic import Field, ValidationError

from ...common.errors import in_brief
from ...common.log import logger
from ...common.reasons import (
    Damaged,
    NewerManifest,
    OlderManifest,
    SigningKeyRefused,
    UnknownPublisher,
    UnreadableManifest,
    UnreadableNow,
    Unsigned,
    Untrusted,
    WrongSignature,
)
from ..entry import Entry, Unparsed, parse, read, read_text
from ..files import IrregularFileError, OversizedFileError, may_pass, nearest, read_regular
from ..layout import settings_file
from ..manifest import Strict
from . import key_file, private_folder
from .publishers import Published, Publishers

log = logger("graph_cache")

KEY_FILE = "signing.key"
KEY_VARIABLE = "ONEGRAPH_SIGNING_KEY"
SIGNATURE_FILE = "signature.json"

_MOST_BYTES = 4096
_MOST_UNSIGNED = 1 << 20  # bytes of a manifest that is parsed although its signature is wrong


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
        home: the user's graph folder.
    """

    home: Path

    def read_key(self) -> bytes | SigningKeyRefused | None:
        """Read the key; None where there is none yet. Raises OSError where nobody can tell now."""
        named = os.environ.get(KEY_VARIABLE)
        if named:
            return key_file.read_given(Path(os.path.expanduser(named)))  # noqa: PTH111 - which would raise
        home_key = key_file.read(self.home / KEY_FILE)
        if isinstance(home_key, bytes) or (home_key is None and _may_be_written(self.home)):
            return home_key
        with contextlib.suppress(OSError):
            other = settings_file(KEY_FILE)
            key = None if other is None else key_file.read(other)
            if isinstance(key, bytes):
                return key
        return home_key

    def refused_key(self) -> SigningKeyRefused | None:
        """Say why the key in the graph folder does not count, where another one does in its place."""
        if not os.environ.get(KEY_VARIABLE):
            with contextlib.suppress(OSError):
                key = key_file.read(self.home / KEY_FILE)
                return key if isinstance(key, SigningKeyRefused) else None
        return None

    def key(self) -> bytes:
        """Return the key; make it if there is none, or none that counts.

        Raises:
            RefusedError: it must not be used.
            OSError: it cannot be made or read.
        """
        existing = self.read_key()
        if isinstance(existing, bytes):
            return existing
        if existing is not None and os.environ.get(KEY_VARIABLE):
            raise private_folder.RefusedError(existing)
        try:
            return key_file.obtain(self.home / KEY_FILE)
        except OSError as error:
            other = settings_file(KEY_FILE)
            if other is None:
                raise
            with contextlib.suppress(OSError):
                key = key_file.obtain(other)
                log.info("%s cannot keep the key for graphs (%s), so that it is %s", self.home, error, other)
                return key
            raise

    def sign(self, manifest: bytes) -> Signature:
        """Sign a manifest's bytes. Raises OSError like `key`."""
        key = self.key()
        return Signature(key=_id(key), value=_hmac(key, manifest))

    def judge(self, entry: Entry | Unparsed) -> Untrusted | UnreadableNow | None:
        """Say why an entry must not be loaded: nobody signed it whom this user trusts."""
        provenance = self.provenance(entry)
        return None if isinstance(provenance, Trusted) else provenance

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
            key = self.read_key()
        except OSError as error:
            return UnreadableNow(KEY_FILE, in_brief(error))
        if isinstance(key, SigningKeyRefused):
            return key
        if key is None or not hmac.compare_digest(signature.key, _id(key)):
            return self.refused_key() or WrongSignature()
        if manifest is not None and not hmac.compare_digest(signature.value, _hmac(key, manifest)):
            return WrongSignature()
        return None


def _may_be_written(folder: Path) -> bool:
    with contextlib.suppress(NotADirectoryError):
        existing = nearest(folder)
        return existing.is_dir() and os.access(existing, os.W_OK)
    return False


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


# Reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrustedEntry:
    """An entry that may be loaded once its files are checked, and whose it is."""

    entry: Entry
    trusted: Trusted


@dataclass(frozen=True)
class FaultyEntry:
    """An entry of this user's or a trusted publisher's whose manifest cannot be used."""

    reason: Damaged


ReadResult = TrustedEntry | FaultyEntry | NewerManifest | OlderManifest | Untrusted | UnreadableNow


def read_trusted(folder: Path, signer: Signer) -> ReadResult:
    """Read the manifest in a folder, and parse it if this user or a trusted publisher signed it."""
    unparsed = read_text(folder)
    if isinstance(unparsed, UnreadableNow):
        return unparsed
    if not isinstance(unparsed, Unparsed):
        return signer.judge_unread(folder) or FaultyEntry(unparsed)
    trusted = signer.provenance(unparsed)
    if isinstance(trusted, WrongSignature):
        return _own_damaged(unparsed, signer) or trusted
    if not isinstance(trusted, Trusted):
        return trusted
    entry = parse(unparsed)
    if isinstance(entry, Entry):
        return TrustedEntry(entry, trusted)
    return FaultyEntry(entry) if isinstance(entry, Damaged) else entry


def _own_damaged(unparsed: Unparsed, signer: Signer) -> FaultyEntry | None:
    """Tell whether a manifest of this user's was damaged since it was signed.

    Everybody can write a manifest beside a signature that names this user's key, so a large one is not looked at. One
    that can be read has another signer, or somebody edited it, and stays.
    """
    if len(unparsed.text) > _MOST_UNSIGNED or signer.judge_unread(unparsed.folder) is not None:
        return None
    again = read(unparsed.folder)
    return FaultyEntry(again) if isinstance(again, UnreadableManifest) else None
