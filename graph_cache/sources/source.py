"""What a source is, and how a graph comes from one: verified before it is parsed, and while it is copied."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

from blake3 import blake3
from pydantic import ValidationError

from ...common import reasons
from ...common.errors import in_brief
from ...common.reasons import Reason
from ..entry import Entry
from ..file_names import check_names
from ..files import IrregularFileError, open_regular
from ..home import Home
from ..key import GraphKey
from ..lookup import Differs
from ..manifest import FileRecord, Manifest
from ..places import valid_place
from ..trust import publishers
from ..trust.publishers import Published, PublisherSignature
from .records import Publisher, RemoteGraph

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

    def take(self, wanted: Wanted, home: Home) -> Taken | Reason | None:
        """Copy a graph to the home, if its signature and its files' digests are right. Never raises.

        Returns:
            Why what it has cannot be used; None: it has no such graph.
        """


@dataclass(frozen=True)
class Done:
    """What became of a graph, or of a file of a store, that was to be written somewhere.

    Attributes:
        name: of its folder, or in the store.
        did: in a word.
        bytes: that were moved.
        reason: why it was left out.
    """

    name: str
    did: str
    bytes: int = 0
    reason: Reason | None = None


# Verifying --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """A graph whose manifest was verified; its files are still to come.

    Attributes:
        text: the manifest's bytes.
        signature: the publisher's, as in its file.
    """

    key: GraphKey
    manifest: Manifest
    text: bytes
    signature: str = ""

    @property
    def bytes(self) -> int:
        """Size of the graph's files, as the manifest lists them."""
        return sum(file.bytes for file in self.manifest.files.values())


def verify(text: bytes, signature: PublisherSignature, publisher: Publisher) -> Graph | Reason:
    """Parse a manifest if the publisher signed it. A graph of another key, or of odd names, is nobody's."""
    verdict = publishers.judge(signature, text, {publisher.name: publisher.key})
    return parse(text, signature.model_dump_json(indent=1)) if isinstance(verdict, Published) else verdict


def parse(text: bytes, signature: str = "") -> Graph | reasons.Damaged:
    """Parse a manifest whose names, of files and of its entry, lead nowhere else."""
    try:
        manifest = Manifest.model_validate_json(text)
    except (ValidationError, MemoryError) as error:
        return reasons.UnreadableManifest(in_brief(error))
    place = key_of(manifest)
    if isinstance(place, reasons.Damaged):
        return place
    return check_names(manifest) or Graph(place, manifest, text, signature)


def key_of(manifest: Manifest) -> GraphKey | reasons.UnreadableManifest:
    """Give the key of a graph, by which its entry is named."""
    place = valid_place(manifest.key, manifest)
    return place[0] if place is not None else reasons.UnreadableManifest("its key names no folder")


# Copying ----------------------------------------------------------------------------------------------------------

Opened = AbstractContextManager[tuple[BinaryIO, int]]  # a file, and how many bytes it has


def copy_files(entry: Entry, folder: Path) -> reasons.Damaged | reasons.UnreadableNow | None:
    """Copy an entry's files; say what is wrong with the first that is not what the manifest lists."""
    bad = check_names(entry.manifest)  # before any of them becomes a path
    if bad is not None:
        return bad
    for name, wanted in entry.manifest.files.items():
        try:
            wrong = copy_file(partial(_opened, entry.folder / name), folder / name, wanted)
        except (OSError, MemoryError) as error:
            return reasons.UnreadableNow(name, in_brief(error))
        if wrong is not None:
            return wrong
    return None


def _opened(path: Path) -> Opened:
    return sized(open_regular(path))


@contextlib.contextmanager
def sized(file: BinaryIO) -> Iterator[tuple[BinaryIO, int]]:
    """Give an open file and how many bytes it has; closed when the block ends. Raises OSError."""
    with file:
        yield file, os.fstat(file.fileno()).st_size


def copy_file(source: Callable[[], Opened], target: Path, wanted: FileRecord) -> reasons.Damaged | None:
    """Copy a file, and compare what was copied with its record.

    Args:
        source: opens it.

    Raises:
        OSError: it cannot be read now, or not be written.
    """
    try:
        # As in `integrity`: only what differs twice is damage.
        return _copy(source, target, wanted) and _copy(source, target, wanted)
    except (FileNotFoundError, NotADirectoryError):
        return reasons.MissingFile(target.name)
    except IrregularFileError:
        return reasons.NotARegularFile(target.name)


def _copy(source: Callable[[], Opened], target: Path, wanted: FileRecord) -> reasons.Damaged | None:
    with source() as (reading, size):
        if size != wanted.bytes:
            return reasons.WrongSize(target.name, size, wanted.bytes)
        with target.open("wb") as writing:
            return None if is_copied(reading, writing, wanted) else reasons.DigestDiffers(target.name)


def is_copied(source: BinaryIO, target: BinaryIO, wanted: FileRecord) -> bool:
    """Copy as many bytes as a record tells, and no more; whether they are the recorded ones. Raises OSError."""
    digest, left = blake3(), wanted.bytes
    while left and (chunk := source.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
        target.write(chunk)
    return not left and digest.hexdigest() == wanted.blake3
