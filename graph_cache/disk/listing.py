"""Lists of graphs with what they take on the disk, when they were used last, and what they are good for here.

Thousands of entries are listed in a fraction of a second: each folder is read once, and manifests only when they are
new (`facts`). Names and paths are texts here, since paths would take most of the time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from ...common.reasons import OlderManifest, Quarantined, Reason
from ..layout import BROKEN_PREFIX, GRAPHS_SUFFIX
from ..manifest import MANIFEST_FILE
from . import leases, marks
from .facts import Facts, KnownFacts
from .marks import FETCHED_FILE, MODELS_FILE, PIN_FILE, USES_FILE
from .usable import Usable


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
        quarantined: whether it was moved aside.
        fetched: whether it came from a remote store, which has it still.
        beside: whether it is a copy beside a checkpoint, which the disk budget does not count.
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
    fetched: bool = False
    beside: bool = False

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
    """The id by which clients name the entry in a folder."""
    name: str = blake3(os.fsencode(folder)).hexdigest(length=5)
    return name


def bytes_on_disk(listed: Iterable[Listed]) -> int:
    """Bytes that entries take together."""
    return sum(one.bytes for one in listed)


def bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder, as far as they can be seen."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it is gone by now
                total += os.lstat(os.path.join(base, name)).st_size  # noqa: PTH118
    return total


class Scan:
    """One reading of folders.

    Attributes:
        visited: each folder that was read, which all have to be as they were for the list to be so.
    """

    def __init__(self, known: KnownFacts) -> None:
        self.visited: list[str] = []
        self._known = known
        self._usable = Usable()
        known.refresh()

    def home(self, graphs: str) -> Iterator[Listed]:
        """Iterate over the entries of the home, quarantined ones too, in order. What cannot be read now is left out."""
        for component in self._folders(graphs):
            for folder in self._folders(component, hidden=BROKEN_PREFIX):
                listed = self._describe(folder, marks.models(Path(folder)), "")
                if listed is not None:
                    yield listed

    def beside(self, root: str) -> Iterator[Listed]:
        """Iterate over the copies beside the checkpoints in a folder."""
        for graphs in self._folders(root, GRAPHS_SUFFIX):
            for location in self._folders(graphs):
                model = marks.Model(os.path.basename(location), graphs)  # noqa: PTH119
                for component in self._folders(location):
                    for folder in self._folders(component, hidden=BROKEN_PREFIX):
                        listed = self._describe(folder, (model,), graphs)
                        if listed is not None:
                            yield listed

    def _folders(self, folder: str, suffix: str = "", hidden: str = "") -> list[str]:
        """List the folders in a folder that end with `suffix`, in order, and hidden ones that begin with `hidden`."""
        self.visited.append(folder)
        with contextlib.suppress(OSError), os.scandir(folder) as items:
            return sorted(
                item.path
                for item in items
                if item.name.endswith(suffix)
                and (item.name[:1] != "." or (hidden and item.name.startswith(hidden)))
                and item.is_dir()
            )
        return []

    def _describe(self, folder: str, models: tuple[marks.Model, ...], beside: str) -> Listed | None:
        files: dict[str, os.stat_result] = {}
        self.visited.append(folder)
        with contextlib.suppress(OSError), os.scandir(folder) as items:
            for item in items:
                if item.is_file(follow_symlinks=False):
                    files[item.name] = item.stat(follow_symlinks=False)
        manifest = files.get(MANIFEST_FILE)
        facts = None if manifest is None else self._known.of(folder, files)
        if manifest is None or facts is None:
            return None
        if MODELS_FILE in files:
            self.visited.append(os.path.join(folder, MODELS_FILE))  # noqa: PTH118
        uses = files.get(USES_FILE)
        if uses is not None:
            self.visited.append(os.path.join(folder, USES_FILE))  # noqa: PTH118
        quarantined = os.path.basename(folder).startswith(BROKEN_PREFIX)  # noqa: PTH119
        unusable: Reason | None = Quarantined() if quarantined else None
        if unusable is None:
            older = facts.code == OlderManifest.code
            unusable = OlderManifest(0) if older else self._usable.why_not(facts, beside)
        return Listed(
            folder=folder,
            id=id_of(folder),
            models=models,
            facts=facts,
            bytes=sum(one.st_size for one in files.values()),
            used=max(manifest.st_mtime, uses.st_mtime) if uses is not None else manifest.st_mtime,
            uses=uses.st_size if uses is not None else 0,
            pinned=PIN_FILE in files,
            unusable=unusable,
            quarantined=quarantined,
            fetched=FETCHED_FILE in files,
            beside=bool(beside),
        )
