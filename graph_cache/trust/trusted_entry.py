"""Reading an entry in the right order: who signed the bytes of its manifest is asked before anything is parsed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...common.reasons import (
    Damaged,
    NewerManifest,
    OlderManifest,
    UnreadableManifest,
    UnreadableNow,
    Untrusted,
    WrongSignature,
)
from ..entry import Entry, Unparsed, parse, read, read_text
from .signing import Signer, Trusted

_MOST_UNSIGNED = 1 << 20  # bytes of a manifest that is parsed although its signature is wrong


@dataclass(frozen=True)
class Known:
    """An entry that may be loaded once its files are checked, and whose it is."""

    entry: Entry
    trusted: Trusted


@dataclass(frozen=True)
class Faulty:
    """An entry of this user's or a trusted publisher's whose manifest cannot be used."""

    reason: Damaged


Verdict = Known | Faulty | NewerManifest | OlderManifest | Untrusted | UnreadableNow


def read_trusted(folder: Path, signer: Signer) -> Verdict:
    """Read the manifest in a folder, and parse it if this user or a trusted publisher signed it."""
    unparsed = read_text(folder)
    if isinstance(unparsed, UnreadableNow):
        return unparsed
    if not isinstance(unparsed, Unparsed):
        return signer.judge_unread(folder) or Faulty(unparsed)
    trusted = signer.provenance(unparsed)
    if isinstance(trusted, WrongSignature):
        return _own_damaged(unparsed, signer) or trusted
    if not isinstance(trusted, Trusted):
        return trusted
    entry = parse(unparsed)
    if isinstance(entry, Entry):
        return Known(entry, trusted)
    return Faulty(entry) if isinstance(entry, Damaged) else entry


def _own_damaged(unparsed: Unparsed, signer: Signer) -> Faulty | None:
    """Tell whether a manifest of this user's was damaged since it was signed.

    Everybody can write a manifest beside a signature that names this user's key, so a large one is not looked at. One
    that can be read has another signer, or somebody edited it, and stays.
    """
    if len(unparsed.text) > _MOST_UNSIGNED or signer.judge_unread(unparsed.folder) is not None:
        return None
    again = read(unparsed.folder)
    return Faulty(again) if isinstance(again, UnreadableManifest) else None
