"""Graphs as lists show them: what is known of each, what it takes on the disk, and what it is good for here.

None of it decides what is loaded or may be removed.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from ...common import reasons
from ...common.installed import torch_version
from ...common.reasons import Reason
from .. import first_use_results
from ..entry import Entry, read
from ..key import AT_LEAST, FORMAT, key_digest
from ..layout import BROKEN_PREFIX
from ..manifest import MANIFEST_FILE, needs_newer
from ..trust.signing import FaultyEntry, Signer, TrustedEntry, read_trusted
from . import leases, marks

_MOST_OF_OTHERS = 1 << 20  # of a manifest that nobody signed whom this user trusts: a longer one is not parsed


@dataclass(frozen=True)
class Facts:
    """What the manifest, the signature and the first-use result of an entry say. All of it may be a stranger's, where
    `signed_by` is empty.

    Attributes:
        label: the shapes for people.
        digest: of its key, 12 hex digits; empty where the manifest cannot be read.
        target: what its code depends on, by name.
        at_least: see `Manifest`.
        format: of the pack that compiled it.
        signed_by: `me`, `publisher`, or empty.
        state: for people: `signed`, `from PUBLISHER`, or why it is not loaded.
        code: of the reason why it is not loaded; empty where it may be.
        graph_bytes: of the graph's files, as the manifest lists them.
        to_eager: the largest relative L2 against eager at first uses on this machine.
        speedup: eager's time over the graph's at its first use on this machine.
    """

    state: str
    code: str
    component: str = ""
    label: str = ""
    digest: str = ""
    dtype: str = ""
    backend: str = ""
    target: Mapping[str, str] = field(default_factory=dict)
    at_least: Mapping[str, str] = field(default_factory=dict)
    format: int = 0
    signed_by: str = ""
    graph_bytes: int = 0
    compile_seconds: float = 0.0
    created: str = ""
    made_by: str = ""
    unmeasured: bool = False
    to_eager: float | None = None
    speedup: float | None = None


@dataclass(frozen=True)
class Listed:
    """An entry of the home, or a copy of one beside a checkpoint.

    Attributes:
        folder: its path.
        id: 10 hex digits, by which clients name it.
        models: those that it served, or beside whose checkpoint it lies; the first one first.
        bytes: of all its files.
        used: when a process loaded it last, or when it was made; seconds since 1970.
        uses: how often a process restored it.
        unusable: why no process of this installation can use it.
        quarantined: whether it was quarantined, so that nothing loads it.
        beside: whether it is a copy beside a checkpoint, which the disk budget does not count.
        stamp: tells whether it is as it was when it was read; see `scan`.
    """

    folder: str
    id: str
    models: tuple[marks.Model, ...]
    facts: Facts
    bytes: int
    used: float
    uses: int
    pinned: bool
    unusable: Reason | None
    quarantined: bool
    beside: bool
    stamp: tuple[int, ...] = ()

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def model(self) -> str:
        """`<checkpoint>/<model hash>` of the first model that it served."""
        return self.models[0].name if self.models else "unknown"

    @property
    def in_use(self) -> bool:
        """Whether a process has it loaded now."""
        return not self.beside and leases.use_of(self.path) == "used"


def id_of(folder: str) -> str:
    """Return the id by which clients name the entry in a folder."""
    name: str = blake3(os.fsencode(folder)).hexdigest(length=5)
    return name


def bytes_on_disk(listed: Iterable[Listed]) -> int:
    """Sum up the bytes that entries take."""
    return sum(one.bytes for one in listed)


def bytes_below(folder: Path) -> int:
    """Sum up the bytes of all files below a folder, as far as they can be seen."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it is gone by now
                total += os.lstat(os.path.join(base, name)).st_size  # noqa: PTH118
    return total


def describe(folder: str, model: marks.Model | None, signer: Signer) -> Listed | None:
    """Read what lists show of an entry; None where it is none, or cannot be read now.

    Args:
        model: beside whose checkpoint it lies; None in the home.
    """
    files: dict[str, os.stat_result] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as items:
        for item in items:
            if item.is_file(follow_symlinks=False):
                files[item.name] = item.stat(follow_symlinks=False)
    manifest, uses = files.get(MANIFEST_FILE), files.get(marks.USES_FILE)
    facts = None if manifest is None else _facts(Path(folder), manifest.st_size, signer)
    if manifest is None or facts is None:
        return None
    quarantined = os.path.basename(folder).startswith(BROKEN_PREFIX)  # noqa: PTH119
    return Listed(
        folder=folder,
        id=id_of(folder),
        models=marks.models(Path(folder)) if model is None else (model,),
        facts=facts,
        bytes=sum(one.st_size for one in files.values()),
        used=max(one.st_mtime for one in (manifest, uses) if one is not None),
        uses=0 if uses is None else uses.st_size,
        pinned=marks.PIN_FILE in files,
        unusable=reasons.Quarantined() if quarantined else _why_unusable(facts),
        quarantined=quarantined,
        beside=model is not None,
    )


def _facts(folder: Path, size: int, signer: Signer) -> Facts | None:
    verdict = read_trusted(folder, signer)
    outcome = verdict.reason if isinstance(verdict, FaultyEntry) else verdict
    entry = outcome.entry if isinstance(outcome, TrustedEntry) else outcome
    if isinstance(outcome, reasons.Untrusted) and size <= _MOST_OF_OTHERS:
        entry = read(folder)
    if isinstance(entry, reasons.UnreadableNow):
        return None
    if not isinstance(entry, Entry):
        return Facts(entry.code.replace("_", " "), entry.code)
    manifest, key, used = entry.manifest, entry.manifest.key, first_use_results.read_here(folder)
    target, made_for = key.get("target"), key.get("format")
    publisher = outcome.trusted.publisher if isinstance(outcome, TrustedEntry) else None
    code = "" if isinstance(outcome, TrustedEntry) else outcome.code
    return Facts(
        state=code.replace("_", " ") or ("signed" if publisher is None else f"from {publisher}"),
        code=code,
        component=str(key.get("component", "")),
        label=manifest.label,
        digest=key_digest(key)[:12],
        dtype=str(key.get("dtype", "")),
        backend=str(key.get("backend", "")),
        target={str(k): str(v) for k, v in target.items()} if isinstance(target, dict) else {},
        at_least=manifest.at_least,
        format=made_for if isinstance(made_for, int) else 0,
        signed_by="" if code else "me" if publisher is None else "publisher",
        graph_bytes=manifest.bytes,
        compile_seconds=manifest.compile_seconds,
        created=manifest.created,
        made_by=manifest.made_by,
        unmeasured=manifest.unmeasured,
        to_eager=max(used.checked.values(), default=None),
        speedup=used.speedup,
    )


def _why_unusable(facts: Facts) -> Reason | None:
    """Say why no process of this installation can use a graph: its target or its format; or None."""
    if facts.code == reasons.OlderManifest.code:
        return reasons.OlderManifest(0)
    return made_for_another(facts.format, facts.target, facts.at_least) if facts.digest else None


def made_for_another(
    version: object, target: Mapping[str, str], at_least: Mapping[str, str]
) -> reasons.MadeForAnother | None:
    """Say what of a graph's format and target keeps every process of this installation from using it, or None."""
    if version != FORMAT:
        return reasons.MadeForAnother("format", str(version), str(FORMAT))
    ours = {"torch": torch_version(), "platform": platform.system().lower(), "machine": platform.machine()}
    for what, here in ours.items():  # an empty text: nobody can tell, so nothing is excluded
        made_for = target.get(what, here)
        if here and made_for not in (here, AT_LEAST):
            return reasons.MadeForAnother(what, made_for, here)
    return needs_newer(at_least)
