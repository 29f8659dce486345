"""Publishers: whose graphs this user trusts besides the own ones, and whether one of them signed an entry.

A publisher's signature stands in `publisher.json` beside the manifest, so that whoever trusts the publisher can load
the entry wherever it lies and whoever owns it. Trust is given by commands alone: see `trust_list`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from ...common import reasons
from ...common.errors import in_brief
from ..entry import Entry, Unparsed
from ..files import IrregularFileError, is_passing, open_regular, read_regular
from ..layout import settings_file
from ..manifest import Strict
from . import ed25519, private_folder, windows_acl, withdrawals

PUBLISHER_FILE = "publisher.json"  # in an entry: who signed it, beside or instead of this user
TRUSTED_FILE = "trusted-publishers.json"  # in the user's folder
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
PUBLIC_KEY = r"^[0-9a-f]{64}$"

_MOST_BYTES = 4096
_MOST_LIST_BYTES = 1 << 20
_PURPOSE = b"onegraph graph, version 1\n"  # what else the key may sign one day is no signature of a graph

Name = Annotated[str, StringConstraints(pattern=NAME)]
PublicKey = Annotated[str, StringConstraints(pattern=PUBLIC_KEY)]


class PublisherSignature(Strict):
    """Who published a graph: the public key, and its signature over the manifest's bytes."""

    version: Literal[1] = 1
    kind: Literal["ed25519"] = "ed25519"
    key: PublicKey
    value: str = Field(pattern=r"^[0-9a-f]{128}$")


class TrustedPublishers(Strict):
    """The publishers that a user trusts, as in the file: name -> public key."""

    version: Literal[1] = 1
    publishers: dict[Name, PublicKey] = {}


@dataclass(frozen=True)
class Published:
    """A publisher that this user trusts signed the manifest."""

    publisher: str


def sign(private: bytes, manifest: bytes) -> PublisherSignature:
    """Sign a manifest's bytes with a publisher's private key. Raises NoCryptographyError."""
    return PublisherSignature(key=ed25519.public_key(private), value=ed25519.sign(private, _PURPOSE + manifest))


def judge(
    signature: PublisherSignature, manifest: bytes, trusted: Mapping[str, str]
) -> Published | reasons.UnknownPublisher | reasons.WrongPublisherSignature | reasons.NeedsCryptography:
    """Say which of the trusted publishers signed a manifest. `cryptography` is imported only for a key of theirs."""
    name = next((name for name, key in trusted.items() if key == signature.key), None)
    if name is None:
        return reasons.UnknownPublisher(signature.key)
    try:
        right = ed25519.is_signed(signature.key, signature.value, _PURPOSE + manifest)
    except ed25519.NoCryptographyError:
        return reasons.NeedsCryptography()
    return Published(name) if right else reasons.WrongPublisherSignature(name)


@dataclass(frozen=True)
class Publishers:
    """The publishers that one user trusts.

    Attributes:
        home: the user's folder, which holds the list; where others may write it there, as on a drive without modes,
            the one in the user's folder for settings counts.
    """

    home: Path

    def judge(self, entry: Entry | Unparsed) -> Published | reasons.Untrusted | reasons.UnreadableNow | None:
        """Say whether a trusted publisher signed an entry, and which; None where no publisher did."""
        try:
            signature = PublisherSignature.model_validate_json(read_regular(entry.folder / PUBLISHER_FILE, _MOST_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, MemoryError, ValidationError) as error:
            return reasons.UnreadableNow(PUBLISHER_FILE, in_brief(error)) if is_passing(error) else None
        try:
            trusted = self.trusted()
        except (OSError, MemoryError) as error:
            return reasons.UnreadableNow(TRUSTED_FILE, in_brief(error))
        if isinstance(trusted, reasons.PublisherListRefused):
            return trusted
        verdict = judge(signature, entry.text, trusted)
        if isinstance(verdict, Published) and withdrawals.is_withdrawn(self.home, signature.key, entry.text):
            return reasons.GraphWithdrawn(verdict.publisher)
        return verdict

    def trusted(self) -> Mapping[str, str] | reasons.PublisherListRefused:
        """Read the names and public keys. Raises OSError where nobody can tell now."""
        trusted = _read(self.home / TRUSTED_FILE)
        other = settings_file(TRUSTED_FILE)
        if other is None or not (isinstance(trusted, reasons.PublisherListRefused) and trusted.fault == "open"):
            return trusted
        with contextlib.suppress(OSError):
            if other.exists():
                return _read(other)
        return trusted


def _read(path: Path) -> Mapping[str, str] | reasons.PublisherListRefused:
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            if not private_folder.POSIX and (wrong := windows_acl.who_else(path, windows_acl.WRITES)):
                return reasons.PublisherListRefused(wrong[0])
            if private_folder.POSIX and status.st_uid not in (0, os.geteuid()):
                return reasons.PublisherListRefused("foreign")
            if private_folder.POSIX and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return reasons.PublisherListRefused("open")
            return TrustedPublishers.model_validate_json(file.read(_MOST_LIST_BYTES)).publishers
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (IrregularFileError, ValidationError):
        return reasons.PublisherListRefused("damaged")
