"""What is known of an entry for lists: read once from its manifest, its signature and its first-use result.

A manifest of SDXL's UNet takes milliseconds to read, and there may be thousands. So the facts are kept in one file of
the user's folder, each with what the system tells of the files they were read from; a file that changed is read again.
The facts are shown and put graphs in an order. They never decide what is loaded or may be removed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from blake3 import blake3

from ...common.reasons import Damaged, NewerManifest, Reason, UnreadableManifest, UnreadableNow, Untrusted
from .. import first_use_results
from ..entry import Entry, Unparsed, parse, read, read_text
from ..files import read_regular, replace_text
from ..first_use_results import FIRST_USE_FILE
from ..layout import machine_id
from ..manifest import MANIFEST_FILE
from ..trust import signing_key
from ..trust.publishers import PUBLISHER_FILE, TRUSTED_FILE
from ..trust.signing import SIGNATURE_FILE, Signer, Trusted

_VERSION = 1  # of the file
_MOST_BYTES = 64 << 20
_MOST_OF_OTHERS = 1 << 20  # of a manifest that nobody signed whom this user trusts: a longer one is not parsed
_SOURCES = (MANIFEST_FILE, SIGNATURE_FILE, PUBLISHER_FILE, FIRST_USE_FILE)
Stamp = tuple[int, ...]


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


def stamp(files: Mapping[str, os.stat_result]) -> Stamp:
    """What changes when an entry's facts may have changed."""
    found = [files.get(name) for name in _SOURCES]
    return tuple(number for one in found if one for number in (one.st_ino, one.st_ctime_ns, one.st_size))


class KnownFacts:
    """The facts of all entries that were listed before, in a file that may be missing, damaged or not writable.

    Args:
        home: the user's graph folder.
    """

    def __init__(self, home: Path, signer: Signer) -> None:
        self._file = home / f"{machine_id()}-graphs.json"
        self._home = home
        self._signer = signer
        self._trust = _trust_stamp(home)
        self._rows: dict[str, tuple[Stamp, Facts]] = {}
        self._changed = False
        self.roots: list[str] = []
        self._load()

    def of(self, folder: str, files: Mapping[str, os.stat_result]) -> Facts | None:
        """The facts of an entry, with what the system tells of its files; None where nobody can tell now."""
        now = stamp(files)
        known = self._rows.get(folder)
        if known is not None and known[0] == now:
            return known[1]
        facts = _read(Path(folder), self._signer, files)
        if facts is not None:
            self._rows[folder] = (now, facts)
            self._changed = True
        return facts

    def add_roots(self, roots: Iterable[str]) -> None:
        """Remember folders with checkpoints beside which this user has graphs."""
        new = [root for root in dict.fromkeys(roots) if root not in self.roots]
        self.roots += new
        self._changed = self._changed or bool(new)

    def save(self, seen: Iterable[str], roots: Iterable[str]) -> None:
        """Write what changed, without the entries below `roots` that were not seen. Never raises OSError."""
        there = {*seen}
        below = tuple(f"{root}{os.sep}" for root in roots)
        gone = [folder for folder in self._rows if folder not in there and folder.startswith(below)]
        for folder in gone:
            del self._rows[folder]
        if not (self._changed or gone) or not self._home.is_dir():
            return
        rows = {folder: [row_stamp, *vars(facts).values()] for folder, (row_stamp, facts) in self._rows.items()}
        data = {"version": _VERSION, "trust": self._trust, "roots": self.roots, "rows": rows}
        with contextlib.suppress(OSError, MemoryError):
            replace_text(self._file, json.dumps(data, separators=(",", ":")))
            self._changed = False

    def _load(self) -> None:
        with contextlib.suppress(OSError, ValueError, MemoryError, RecursionError, TypeError, AttributeError, KeyError):
            data = json.loads(read_regular(self._file, _MOST_BYTES))
            if data["version"] != _VERSION:
                return
            self.roots = [root for root in data["roots"] if isinstance(root, str)]
            if data["trust"] != self._trust:  # whose graphs are trusted may be another matter now
                return
            width = len(fields(Facts)) + 1
            rows = {folder: row for folder, row in data["rows"].items() if len(row) == width}
            self._rows = {folder: (tuple(row[0]), Facts(*row[1:])) for folder, row in rows.items()}


def _trust_stamp(home: Path) -> list[int | str]:
    """What changes when another key signs, or other publishers are trusted."""
    found: list[int | str] = []
    with contextlib.suppress(OSError):
        key = signing_key.read(home)
        found.append(blake3(key).hexdigest(length=4) if isinstance(key, bytes) else getattr(key, "code", ""))
    with contextlib.suppress(OSError):
        listed = (home / TRUSTED_FILE).stat()
        found += [listed.st_ino, listed.st_ctime_ns]
    return found


def _read(folder: Path, signer: Signer, files: Mapping[str, os.stat_result]) -> Facts | None:
    found = read_text(folder)
    whose = signer.provenance(found) if isinstance(found, Unparsed) else None
    if isinstance(whose, Untrusted) and isinstance(found, Unparsed) and len(found.text) > _MOST_OF_OTHERS:
        return _unreadable(whose)
    entry = parse(found) if isinstance(found, Unparsed) else found
    if isinstance(entry, UnreadableManifest):
        entry = read(folder)  # it may have changed meanwhile
    if isinstance(entry, UnreadableNow) or isinstance(whose, UnreadableNow):
        return None
    if not isinstance(entry, Entry) or whose is None:
        return _unreadable(entry if not isinstance(entry, Entry) else UnreadableManifest("It changes."))
    manifest, key = entry.manifest, entry.manifest.key
    used = first_use_results.read_here(folder) if FIRST_USE_FILE in files else first_use_results.FirstUse()
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


def _unreadable(why: Damaged | NewerManifest | Untrusted) -> Facts:
    code = why.code
    return Facts("", "", "", "", "", {}, 0, "", code.replace("_", " "), code, 0, 0.0, "", "", None, None)


def describe(whose: Trusted | Reason) -> str:
    """Tell in a word whose an entry is."""
    if isinstance(whose, Reason):
        return whose.code.replace("_", " ")
    return "signed" if whose.publisher is None else f"from {whose.publisher}"
