"""What a source is, and how a graph comes from one: its files are verified while they are copied to the home."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from blake3 import blake3

from ...common.errors import in_brief
from ...common.reasons import Damaged, DigestDiffers, MissingFile, NotARegularFile, Reason, UnreadableNow, WrongSize
from ..entry import Entry
from ..file_names import check_names
from ..files import IrregularFileError, open_regular
from ..home import Home
from ..key import GraphKey
from ..lookup import Differs
from ..manifest import FileRecord
from ..remote.records import RemoteGraph

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Wanted:
    """What is looked for.

    Attributes:
        digest: of the key, as remote stores name it.
        key: None: whatever key has the digest.
        differs: why a graph of the key cannot be used here all the same, or None.
        condemned: entries that were quarantined here for what they did.
    """

    digest: str
    key: GraphKey | None
    differs: Differs
    condemned: list[Entry]


@dataclass(frozen=True)
class Taken:
    """A graph that is in the home now, and what its remote store's record tells of it."""

    entry: Entry
    graph: RemoteGraph | None = None


class Source(Protocol):
    """A place that has graphs. Others may write it."""

    def keys(self) -> Iterable[str]:
        """Give the digests of the keys of its graphs, as `remote.records.key_digest` makes them. Never raises."""

    def take(self, wanted: Wanted, home: Home) -> Taken | Reason | None:
        """Copy a graph to the home, if its signature and its files' digests are right. Never raises.

        Returns:
            Why what it has cannot be used; None: it has no such graph.
        """


def copy_files(entry: Entry, folder: Path) -> Damaged | UnreadableNow | None:
    """Copy an entry's files; say what is wrong with the first that is not what the manifest lists."""
    bad = check_names(entry.manifest)  # before any of them becomes a path
    if bad is not None:
        return bad
    for name, wanted in entry.manifest.files.items():
        try:
            # As in `integrity`: only what differs twice is damage.
            wrong = _copy(entry.folder / name, folder / name, wanted)
            wrong = wrong and _copy(entry.folder / name, folder / name, wanted)
        except FileNotFoundError:
            return MissingFile(name)
        except IrregularFileError:
            return NotARegularFile(name)
        except (OSError, MemoryError) as error:
            return UnreadableNow(name, in_brief(error))
        if wrong is not None:
            return wrong
    return None


def _copy(source: Path, target: Path, wanted: FileRecord) -> WrongSize | DigestDiffers | None:
    """Copy a file, and compare what was copied with its record. Raises OSError."""
    with open_regular(source) as reading, target.open("wb") as writing:
        size = os.fstat(reading.fileno()).st_size
        if size != wanted.bytes:
            return WrongSize(source.name, size, wanted.bytes)
        return None if is_copied(reading, writing, wanted) else DigestDiffers(source.name)


def is_copied(source: BinaryIO, target: BinaryIO, wanted: FileRecord) -> bool:
    """Copy as many bytes as a record tells, and no more; whether they are the recorded ones. Raises OSError."""
    digest, left = blake3(), wanted.bytes
    while left and (chunk := source.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
        target.write(chunk)
    return not left and digest.hexdigest() == wanted.blake3
