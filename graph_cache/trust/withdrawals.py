"""Withdrawals: which of their graphs publishers have taken back. They only add up, whichever store told of them.

A publisher signs a statement for each graph. This user's folder has an empty file for each that was ever read, so that
no store brings a graph back, and processes that learn of several at once lose none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable
from pathlib import Path
from typing import ClassVar, Literal

from blake3 import blake3
from pydantic import Field, ValidationError

from ..files import sync_folder
from ..manifest import Strict
from . import ed25519

FOLDER = ".withdrawn"  # below the user's folder
MOST_BYTES = 16 << 20  # of a list: 40,000 statements
_DIGEST = r"^[0-9a-f]{64}$"


class Envelope(Strict):
    """A statement as text, and the publisher's signature over its bytes."""

    statement: str
    value: str = Field(pattern=r"^[0-9a-f]{128}$")


class Withdrawal(Strict):
    """That a publisher has taken back a graph, by the digest of its manifest."""

    PURPOSE: ClassVar[bytes] = b"onegraph withdrawal, version 1\n"

    version: Literal[1] = 1
    publisher: str = Field(pattern=_DIGEST)
    manifest: str = Field(pattern=_DIGEST)


def read(data: bytes, public: str, withdrawn: Container[str] = ()) -> tuple[dict[str, bytes], bool]:
    """Read a list of signed withdrawals, one a line.

    Args:
        withdrawn: manifests that are known to be withdrawn; signatures of these are not verified again.

    Returns:
        By manifest, that publisher's lines; and whether all are. Those after a wrong one are left out, since a forged
        list is to cost the time of one signature.

    Raises:
        NoCryptographyError: nothing can be verified.
    """
    lines: dict[str, bytes] = {}
    for line in data.splitlines():
        try:
            envelope = Envelope.model_validate_json(line)
            one = Withdrawal.model_validate_json(envelope.statement)
        except (ValidationError, ValueError):
            return lines, False
        signed = Withdrawal.PURPOSE + envelope.statement.encode()
        if one.publisher != public or one.manifest in lines:
            return lines, False
        if one.manifest not in withdrawn and not ed25519.is_signed(public, envelope.value, signed):
            return lines, False
        lines[one.manifest] = line
    return lines, True


def remembered(home: Path, public: str) -> frozenset[str]:
    """Return the manifests of the graphs that a publisher is known to have taken back."""
    try:
        return frozenset(one.name for one in (home / FOLDER / public).iterdir() if re.fullmatch(_DIGEST, one.name))
    except OSError:
        return frozenset()


def remember(home: Path, public: str, manifests: Iterable[str]) -> None:
    """Keep that a publisher has taken back graphs. Raises OSError."""
    new = {*manifests} - remembered(home, public)
    if new:
        folder = home / FOLDER / public
        folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.mkdir(mode=0o755, exist_ok=True)
        for one in new:
            (folder / one).touch(mode=0o644)
        sync_folder(folder)


def is_withdrawn(home: Path, public: str, manifest: bytes) -> bool:
    """Tell whether a publisher is known to have taken back the graph of a manifest."""
    return os.path.lexists(home / FOLDER / public / blake3(manifest).hexdigest())
