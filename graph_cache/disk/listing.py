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

from ...common.reasons import Quarantined, Reason
from ..layout import BROKEN_PREFIX, COMPILER_CACHE, GRAPHS_SUFFIX
from ..manifest import MANIFEST_FILE
from . import leases
from .facts import Facts, KnownFacts
from .marks import FETCHED_FILE, PIN_FILE, USES_FILE
from .usable import Usable

File = tuple[int, int]  # device and number: equal for the hard links of one file


@dataclass(frozen=True)
class Listed:
    """An entry as it lies on the disk.

    Attributes:
        folder: its path.
        id: 10 hex digits, by which clients name it.
        root: the folder with checkpoints beside one of which it lies, or the user's graph folder.
        model: `<checkpoint>/<model hash>`, or `<graph folder>/<model hash>`.
        files: bytes of each of its files, and how many names it has on the disk.
        used: when a process loaded it last, or when it was made; seconds since 1970.
        uses: how often a process restored it.
        unusable: why no process of this installation can use it.
        quarantined: whether it was moved aside.
        fetched: whether it came from a remote store, which has it still.
    """

    folder: str
    id: str
    root: str
    model: str
    facts: Facts
    files: tuple[tuple[File, int, int], ...]
    used: float
    uses: int
    pinned: bool
    unusable: Reason | None
    quarantined: bool
    fetched: bool = False

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def bytes(self) -> int:
        """Bytes of all its files, also of those that other entries share."""
        return sum(size for _, size, _ in self.files)

    @property
    def in_use(self) -> bool:
        """Whether a process has it loaded now."""
        return leases.use_of(self.path) == "used"


def id_of(folder: str) -> str:
    """The id by which clients name the entry in a folder."""
    name: str = blake3(os.fsencode(folder)).hexdigest(length=5)
    return name


def bytes_on_disk(listed: Iterable[Listed]) -> int:
    """Bytes that entries take together, what several share counted once."""
    single, shared = 0, {}
    for one in listed:
        for file, size, links in one.files:
            if links > 1:
                shared[file] = size
            else:
                single += size
    return single + sum(shared.values())


def scan(home: str, roots: Iterable[str], known: KnownFacts, visited: list[str]) -> Iterator[Listed]:
    """Iterate over the entries in the user's graph folder and beside the checkpoints in `roots`, in order.

    One that cannot be read now is left out.

    Args:
        visited: takes each folder that is read.
    """
    usable = Usable()

    def within(folder: str, suffix: str = "", hidden: str = "") -> list[str]:
        visited.append(folder)
        return _folders(folder, suffix, hidden)

    for root in dict.fromkeys([home, *roots]):
        for graphs in [""] if root == home else within(root, GRAPHS_SUFFIX):
            top = graphs or root
            place = os.path.basename(top).removesuffix(GRAPHS_SUFFIX)  # noqa: PTH119
            for location in within(top):
                if root == home and location.endswith(f"{os.sep}{COMPILER_CACHE}"):
                    continue
                model = f"{place}/{os.path.basename(location)}"  # noqa: PTH119
                for component in within(location):
                    for folder in within(component, hidden=BROKEN_PREFIX):
                        visited.append(folder)
                        found = _describe(folder, root, graphs, model, known, usable)
                        if found is not None:
                            yield found


def _describe(folder: str, root: str, graphs: str, model: str, known: KnownFacts, usable: Usable) -> Listed | None:
    files: dict[str, os.stat_result] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for item in found:
            if item.is_file(follow_symlinks=False):
                files[item.name] = item.stat(follow_symlinks=False)
    manifest = files.get(MANIFEST_FILE)
    facts = None if manifest is None else known.of(folder, files)
    if manifest is None or facts is None:
        return None
    quarantined = os.path.basename(folder).startswith(BROKEN_PREFIX)  # noqa: PTH119
    uses = files.get(USES_FILE)
    return Listed(
        folder=folder,
        id=id_of(folder),
        root=root,
        model=model,
        facts=facts,
        files=tuple(((one.st_dev, one.st_ino), one.st_size, one.st_nlink) for one in files.values()),
        used=max(manifest.st_mtime, uses.st_mtime) if uses is not None else manifest.st_mtime,
        uses=uses.st_size if uses is not None else 0,
        pinned=PIN_FILE in files,
        unusable=Quarantined() if quarantined else usable.why_not(facts, graphs),
        quarantined=quarantined,
        fetched=FETCHED_FILE in files,
    )


def _folders(folder: str, suffix: str = "", hidden: str = "") -> list[str]:
    """List the folders in a folder that end with `suffix`, in order, and of hidden ones those that begin with `hidden`.

    Links to folders count, as they do for look-ups.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        return sorted(
            item.path
            for item in found
            if item.name.endswith(suffix)
            and (item.name[:1] != "." or (hidden and item.name.startswith(hidden)))
            and item.is_dir()
        )
    return []
