"""Withdrawals: which of their graphs publishers have taken back. Remembered here, so that no store brings them back.

A publisher signs the list anew, with a higher number, whenever a graph is added to it. This user's folder keeps what
was read last of each publisher, and a list with a lower number changes nothing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from blake3 import blake3
from pydantic import Field, StringConstraints, ValidationError

from ..files import read_regular, replace_text
from ..manifest import Strict
from . import ed25519

FOLDER = ".withdrawn"  # below the user's folder
MOST_BYTES = 4 << 20


class Envelope(Strict):
    """A statement as text, and the publisher's signature over its bytes."""

    statement: str
    value: str = Field(pattern=r"^[0-9a-f]{128}$")


class Withdrawals(Strict):
    """Which graphs a publisher has taken back, by the digests of their manifests.

    Attributes:
        number: of the list; a later one has a higher one.
    """

    PURPOSE: ClassVar[bytes] = b"onegraph withdrawals, version 1\n"

    version: Literal[1] = 1
    publisher: str = Field(pattern=r"^[0-9a-f]{64}$")
    number: int = Field(ge=0)
    manifests: frozenset[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]] = frozenset()


def verified(data: bytes, public: str) -> Withdrawals | None:
    """Read a list, if that publisher signed it; None if not. Raises NoCryptographyError."""
    try:
        envelope = Envelope.model_validate_json(data)
        if not ed25519.is_signed(public, envelope.value, Withdrawals.PURPOSE + envelope.statement.encode()):
            return None
        found = Withdrawals.model_validate_json(envelope.statement)
    except (ValidationError, ValueError):
        return None
    return found if found.publisher == public else None


def known(home: Path, public: str) -> Withdrawals:
    """Read what is known of a publisher here; an empty list with the number 0 where nothing is."""
    with contextlib.suppress(OSError, MemoryError, ed25519.NoCryptographyError):
        found = verified(read_regular(_file(home, public), MOST_BYTES), public)
        if found is not None:
            return found
    return Withdrawals(publisher=public, number=0)


def remember(home: Path, public: str, data: bytes) -> bool:
    """Keep a publisher's list if it is later than the one that is known; whether the signature is right.

    Never raises OSError: where it cannot be kept, the next process asks again.

    Raises:
        NoCryptographyError: nothing can be verified.
    """
    found = verified(data, public)
    if found is None:
        return False
    if found.number > known(home, public).number:
        with contextlib.suppress(OSError):
            _file(home, public).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_text(_file(home, public), data.decode())
    return True


def is_withdrawn(home: Path, public: str, manifest: bytes) -> bool:
    """Whether a publisher is known to have taken back the graph of a manifest."""
    return blake3(manifest).hexdigest() in known(home, public).manifests


def _file(home: Path, public: str) -> Path:
    return home / FOLDER / f"{public}.json"
