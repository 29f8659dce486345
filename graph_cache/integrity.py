"""Whether an entry's files are what its manifest lists: asked before they are loaded, and while they are copied."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from ..common import reasons
from ..common.errors import in_brief
from ..common.reasons import Reason
from .entry import Entry
from .file_names import check_names
from .files import IrregularFileError, may_pass, open_regular
from .manifest import FileRecord

_CHUNK = 1 << 20

Opened = AbstractContextManager[tuple[BinaryIO, int]]  # a file, and how many bytes it has


@dataclass(frozen=True)
class Sound:
    """Every file of the entry is what the manifest lists."""


def record(path: Path) -> FileRecord:
    """Measure a regular file: size and digest. Raises OSError."""
    digest, size = blake3(), 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(bytes=size, blake3=digest.hexdigest())


def check(entry: Entry) -> Sound | reasons.Damaged | reasons.UnreadableNow:
    """Compare every file with the manifest; the first that differs is returned."""
    return _compare_files(entry, None) or Sound()


def copy_files(entry: Entry, folder: Path) -> reasons.Damaged | reasons.UnreadableNow | None:
    """Copy an entry's files; say what is wrong with the first that is not what the manifest lists."""
    return _compare_files(entry, folder)


def _compare_files(entry: Entry, folder: Path | None) -> reasons.Damaged | reasons.UnreadableNow | None:
    bad = check_names(entry.manifest)  # before any of them becomes a path
    if bad is not None:
        return bad
    for name, wanted in entry.manifest.files.items():
        path = entry.folder / name
        try:
            wrong = compare(partial(_opened, path), name, wanted, None if folder is None else folder / name)
        except (OSError, MemoryError) as error:
            now = folder is not None or may_pass(error, path)  # or it cannot be written
            return (reasons.UnreadableNow if now else reasons.UnreadableFile)(name, in_brief(error))
        if wrong is not None:
            return wrong
    return None


def _opened(path: Path) -> Opened:
    return sized(open_regular(path))


@contextlib.contextmanager
def sized(file: BinaryIO) -> Iterator[tuple[BinaryIO, int]]:
    """Return an open file and how many bytes it has; closed when the block ends. Raises OSError."""
    with file:
        yield file, os.fstat(file.fileno()).st_size


def compare(
    source: Callable[[], Opened], name: str, wanted: FileRecord, target: Path | None = None
) -> reasons.Damaged | None:
    """Compare a file with its record, and copy what is compared.

    Args:
        source: opens it.

    Raises:
        OSError: it cannot be read now, or not be written.
    """
    try:
        # A disk or network that fails for a moment may give other bytes: only what differs twice is damage.
        return _compare(source, name, wanted, target) and _compare(source, name, wanted, target)
    except (FileNotFoundError, NotADirectoryError):
        return reasons.MissingFile(name)
    except IrregularFileError:
        return reasons.NotARegularFile(name)


def _compare(
    source: Callable[[], Opened], name: str, wanted: FileRecord, target: Path | None
) -> reasons.WrongSize | reasons.DigestDiffers | None:
    with source() as (reading, size):
        if size != wanted.bytes:  # it is not read
            return reasons.WrongSize(name, size, wanted.bytes)
        with contextlib.nullcontext() if target is None else target.open("wb") as writing:
            return None if is_same(reading, wanted, writing) else reasons.DigestDiffers(name)


def is_same(source: BinaryIO, wanted: FileRecord, target: BinaryIO | None = None) -> bool:
    """Read as many bytes as a record tells, and no more, and copy them; whether they are the recorded ones."""
    digest, left = blake3(), wanted.bytes
    while left and (chunk := source.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
        if target is not None:
            target.write(chunk)
    return not left and digest.hexdigest() == wanted.blake3


def differs(name: str, data: bytes, wanted: FileRecord) -> reasons.WrongSize | reasons.DigestDiffers | None:
    """Compare the bytes of a file with its record."""
    if len(data) != wanted.bytes:
        return reasons.WrongSize(name, len(data), wanted.bytes)
    return None if blake3(data).hexdigest() == wanted.blake3 else reasons.DigestDiffers(name)


def describe(state: Sound | Reason) -> str:
    """Describe the state of an entry: `sound`, or what is wrong, in a word and a clause."""
    if isinstance(state, reasons.Damaged):
        return f"damaged: {state.damage}"
    if isinstance(state, reasons.NewerManifest | reasons.OlderManifest):
        return f"of another version: {state.text}"
    if isinstance(state, reasons.Untrusted):
        return f"not trusted: {state.text}"
    if isinstance(state, reasons.UnreadableNow):
        return f"unreadable: {state.text}"
    return state.text if isinstance(state, Reason) else "sound"
