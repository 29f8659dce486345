"""What is known of an entry for lists: read from its manifest, its signature and its first-use result.

A manifest of SDXL's UNet takes milliseconds to read, so that a process remembers the facts as long as the files they
were read from stay as they are. They never decide what is loaded or may be removed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from ...common.reasons import (
    Damaged,
    NewerManifest,
    OlderManifest,
    Reason,
    UnreadableManifest,
    UnreadableNow,
    Untrusted,
)
from .. import first_use_results
from ..entry import Entry, Unparsed, parse, read, read_text
from ..first_use_results import FIRST_USE_FILE, FirstUse
from ..manifest import MANIFEST_FILE
from ..trust import signing_key
from ..trust.publishers import PUBLISHER_FILE, TRUSTED_FILE
from ..trust.signing import SIGNATURE_FILE, Signer, Trusted

_MOST_OF_OTHERS = 1 << 20  # of a manifest that nobody signed whom this user trusts: a longer one is not parsed
_SOURCES = (MANIFEST_FILE, SIGNATURE_FILE, PUBLISHER_FILE, FIRST_USE_FILE)


@dataclass(frozen=True)
class Facts:
    """What is known of an entry. All of it may be a stranger's, where `signed_by` is empty.

    Attributes:
        label: the shapes for people.
        digest: of its key, 12 hex digits.
        target: what its code depends on, by name.
        format: of the pack that compiled it.
        signed_by: `me`, `publisher`, or empty.
        state: for people: `signed`, `from PUBLISHER`, or why it is not loaded.
        code: of the reason why it is not loaded; empty where it may be.
        graph_bytes: of the graph's files, as the manifest lists them.
        to_eager: the largest relative L2 against eager at first uses on this machine.
        speedup: eager's time over the graph's at its first use on this machine.
    """

    component: str
    label: str
    digest: str
    dtype: str
    backend: str
    target: Mapping[str, str]
    format: int
    signed_by: str
    state: str
    code: str
    graph_bytes: int
    compile_seconds: float
    created: str
    made_by: str
    to_eager: float | None
    speedup: float | None


class KnownFacts:
    """The facts of the entries that this process has listed.

    Args:
        user: the user's graph folder, with the key and the list of publishers.
    """

    def __init__(self, user: Path, signer: Signer) -> None:
        self._user = user
        self._signer = signer
        self._trust: list[int | str] = []
        self._rows: dict[str, tuple[tuple[int, ...], Facts]] = {}

    def refresh(self) -> None:
        """Forget everything where another key signs, or other publishers are trusted."""
        trust: list[int | str] = []
        with contextlib.suppress(OSError):
            key = signing_key.read(self._user)
            trust.append(blake3(key).hexdigest(length=4) if isinstance(key, bytes) else getattr(key, "code", ""))
        for name in (TRUSTED_FILE, ".withdrawn"):
            with contextlib.suppress(OSError):
                status = (self._user / name).stat()
                trust += [status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
        if trust != self._trust:
            self._trust, self._rows = trust, {}

    def of(self, folder: str, files: Mapping[str, os.stat_result]) -> Facts | None:
        """The facts of an entry, with what the system tells of its files; None where nobody can tell now."""
        status = [files.get(name) for name in _SOURCES]
        stamp = tuple(number for one in status if one for number in (one.st_ino, one.st_ctime_ns, one.st_size))
        row = self._rows.get(folder)
        if row is not None and row[0] == stamp:
            return row[1]
        facts = _read(Path(folder), self._signer, files)
        if facts is not None:
            self._rows[folder] = (stamp, facts)
        return facts

    def forget(self, kept: set[str]) -> None:
        """Forget the entries that are not among these."""
        self._rows = {folder: row for folder, row in self._rows.items() if folder in kept}


def _read(folder: Path, signer: Signer, files: Mapping[str, os.stat_result]) -> Facts | None:
    unparsed = read_text(folder)
    whose = signer.provenance(unparsed) if isinstance(unparsed, Unparsed) else None
    if isinstance(whose, Untrusted) and isinstance(unparsed, Unparsed) and len(unparsed.text) > _MOST_OF_OTHERS:
        return _unreadable(whose)
    entry = parse(unparsed) if isinstance(unparsed, Unparsed) else unparsed
    if isinstance(entry, UnreadableManifest):
        entry = read(folder)  # it may have changed meanwhile
    if isinstance(entry, UnreadableNow) or isinstance(whose, UnreadableNow):
        return None
    if not isinstance(entry, Entry) or whose is None:
        return _unreadable(entry if not isinstance(entry, Entry) else UnreadableManifest("It changes."))
    manifest, key = entry.manifest, entry.manifest.key
    used = first_use_results.read_here(folder) if FIRST_USE_FILE in files else FirstUse()
    target = key.get("target")
    return Facts(
        component=str(key.get("component", "")),
        label=manifest.label,
        digest=blake3(json.dumps(key, sort_keys=True).encode()).hexdigest(length=6),
        dtype=str(key.get("dtype", "")),
        backend=str(key.get("backend", "")),
        target={str(k): str(v) for k, v in target.items()} if isinstance(target, dict) else {},
        format=format_ if isinstance(format_ := key.get("format"), int) else 0,
        signed_by=("me" if whose.publisher is None else "publisher") if isinstance(whose, Trusted) else "",
        state=describe(whose),
        code=whose.code if isinstance(whose, Reason) else "",
        graph_bytes=entry.bytes,
        compile_seconds=manifest.compile_seconds,
        created=manifest.created,
        made_by=manifest.made_by,
        to_eager=max(used.checked.values(), default=None),
        speedup=used.speedup,
    )


def _unreadable(why: Damaged | NewerManifest | OlderManifest | Untrusted) -> Facts:
    code = why.code
    return Facts("", "", "", "", "", {}, 0, "", code.replace("_", " "), code, 0, 0.0, "", "", None, None)


def describe(whose: Trusted | Reason) -> str:
    """Tell in a word whose an entry is."""
    if isinstance(whose, Reason):
        return whose.code.replace("_", " ")
    return "signed" if whose.publisher is None else f"from {whose.publisher}"
