"""Reading an entry in the right order: who signed the bytes of its manifest is asked before anything is parsed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...common.reasons import Damaged, NewerManifest, UnreadableManifest, UnreadableNow, Untrusted, WrongSignature
from ..entry import Entry, Unparsed, parse, read, read_text
from . import ownership
from .signing import Signer, Trusted

_MOST_UNSIGNED = 1 << 20  # bytes of a manifest that is parsed although its signature is wrong


@dataclass(frozen=True)
class Known:
    """An entry that may be loaded once its files are checked, and whose it is."""

    entry: Entry
    trusted: Trusted


@dataclass(frozen=True)
class Faulty:
    """An entry whose manifest cannot be used.

    Attributes:
        mine: whether it is this user's, so that it may be quarantined.
    """

    reason: Damaged
    mine: bool


Judged = Known | Faulty | NewerManifest | Untrusted | UnreadableNow


def read_trusted(folder: Path, signer: Signer) -> Judged:
    """Read the manifest in a folder, and parse it if this user or a trusted publisher signed it."""
    found = read_text(folder)
    if isinstance(found, UnreadableNow):
        return _unless_planted(folder, found)
    if not isinstance(found, Unparsed):
        return signer.judge_unread(folder) or Faulty(found, mine=True)
    trusted = signer.provenance(found)
    if isinstance(trusted, UnreadableNow):
        return _unless_planted(folder, trusted)
    if isinstance(trusted, WrongSignature):
        return _own_damaged(found, signer) or trusted
    if not isinstance(trusted, Trusted):
        return trusted
    entry = parse(found)
    if isinstance(entry, Entry):
        return Known(entry, trusted)
    return Faulty(entry, trusted.mine) if isinstance(entry, Damaged) else entry


def _unless_planted(folder: Path, unreadable: UnreadableNow) -> Untrusted | UnreadableNow:
    """Tell of what cannot be read now whether others may have put it there: they could keep it so for ever."""
    wrong = ownership.check(folder)
    return wrong if isinstance(wrong, Untrusted) else unreadable


def _own_damaged(found: Unparsed, signer: Signer) -> Faulty | None:
    """Tell whether a manifest of this user's was damaged since it was signed.

    Everybody can write a manifest beside a signature that names this user's key, so a large one is not looked at. One
    that can be read has another signer, or somebody edited it, and stays.
    """
    if len(found.text) > _MOST_UNSIGNED or signer.judge_unread(found.folder) is not None:
        return None
    again = read(found.folder)
    return Faulty(again, mine=True) if isinstance(again, UnreadableManifest) else None
