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

from ..common.errors import in_brief
from ..common.reasons import (
    Damaged,
    DigestDiffers,
    MissingFile,
    NewerManifest,
    NotARegularFile,
    OlderManifest,
    Reason,
    UnreadableFile,
    UnreadableNow,
    Untrusted,
    WrongSize,
)
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


def check(entry: Entry) -> Sound | Damaged | UnreadableNow:
    """Compare every file with the manifest; the first that differs is returned."""
    return _compare_files(entry, None) or Sound()


def copy_files(entry: Entry, folder: Path) -> Damaged | UnreadableNow | None:
    """Copy an entry's files; say what is wrong with the first that is not what the manifest lists."""
    return _compare_files(entry, folder)


def _compare_files(entry: Entry, folder: Path | None) -> Damaged | UnreadableNow | None:
    bad = check_names(entry.manifest)  # before any of them becomes a path
    if bad is not None:
        return bad
    for name, wanted in entry.manifest.files.items():
        path = entry.folder / name
        try:
            wrong = compare(partial(_opened, path), name, wanted, None if folder is None else folder / name)
        except (OSError, MemoryError) as error:
            now = folder is not None or may_pass(error, path)  # or it cannot be written
            return (UnreadableNow if now else UnreadableFile)(name, in_brief(error))
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


def compare(source: Callable[[], Opened], name: str, wanted: FileRecord, target: Path | None = None) -> Damaged | None:
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
        return MissingFile(name)
    except IrregularFileError:
        return NotARegularFile(name)


def _compare(
    source: Callable[[], Opened], name: str, wanted: FileRecord, target: Path | None
) -> WrongSize | DigestDiffers | None:
    with source() as (reading, size):
        if size != wanted.bytes:  # it is not read
            return WrongSize(name, size, wanted.bytes)
        with contextlib.nullcontext() if target is None else target.open("wb") as writing:
            return None if is_same(reading, wanted, writing) else DigestDiffers(name)


def is_same(source: BinaryIO, wanted: FileRecord, target: BinaryIO | None = None) -> bool:
    """Read as many bytes as a record tells, and no more, and copy them; whether they are the recorded ones."""
    digest, left = blake3(), wanted.bytes
    while left and (chunk := source.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
        if target is not None:
            target.write(chunk)
    return not left and digest.hexdigest() == wanted.blake3


def differs(name: str, data: bytes, wanted: FileRecord) -> WrongSize | DigestDiffers | None:
    """What differs between the bytes of a file and its record."""
    if len(data) != wanted.bytes:
        return WrongSize(name, len(data), wanted.bytes)
    return None if blake3(data).hexdigest() == wanted.blake3 else DigestDiffers(name)


def describe(state: Sound | Reason) -> str:
    """Tell what was found of an entry, in a word and a clause."""
    if isinstance(state, Damaged):
        return f"damaged: {state.damage}"
    if isinstance(state, NewerManifest | OlderManifest):
        return f"of another version: {state.text}"
    if isinstance(state, Untrusted):
        return f"not trusted: {state.text}"
    if isinstance(state, UnreadableNow):
        return f"unreadable: {state.text}"
    return state.text if isinstance(state, Reason) else "sound"
