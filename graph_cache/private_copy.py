"""Private copies: what is loaded is what was checked, although others may hold the entry's files open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from ..common.errors import in_brief
from ..common.reasons import (
    Damaged,
    DigestDiffers,
    MissingFile,
    NotARegularFile,
    UnreadableNow,
    WritableByOthers,
    WrongSize,
)
from .crash import leftovers
from .entry import Entry
from .files import IrregularFileError, despite_removals, free_bytes, open_regular
from .layout import COPIES_FOLDER
from .manifest import FileRecord
from .trust import ownership
from .trust.open_folder import is_closed

ROOM = 64 << 20  # bytes that are to be free for a graph and the files of its compile
_CHUNK = 1 << 20


@contextlib.contextmanager
def private_folder(base: Path) -> Iterator[Path]:
    """Give an empty folder in a folder of this user that nobody else can look into; gone at the end.

    It lies in the system's folder for temporary files where that one cannot take it, is full, or lies where others
    could exchange it.

    Raises:
        OSError: neither can.
    """
    last: OSError | None = None
    free = free_bytes(base)
    try:
        for place in (base, None) if free is None or free >= ROOM else (None, base):
            with contextlib.ExitStack() as held:
                try:
                    folder = held.enter_context(_in(place))
                except OSError as error:
                    last = error
                    continue
                yield folder
                return
    finally:
        with contextlib.suppress(OSError):  # others are in it
            base.rmdir()
    assert last is not None
    raise last


@contextlib.contextmanager
def _in(base: Path | None) -> Iterator[Path]:
    """Give a folder of this process in the user's folder `base`, or in that for temporary files. Raises OSError."""
    if base is None:
        with leftovers.owned_folder(None) as folder:
            yield folder
        return
    with contextlib.ExitStack() as held:
        yield despite_removals(lambda: held.enter_context(_made_in(base)))


@contextlib.contextmanager
def _made_in(base: Path) -> Iterator[Path]:
    ownership.make_private(base)
    if not is_closed(base):
        raise ownership.RefusedError(WritableByOthers(base.name))
    with leftovers.owned_folder(base) as folder:
        yield folder


@contextlib.contextmanager
def private_copy(home: Path, entry: Entry) -> Iterator[Path | Damaged | UnreadableNow]:
    """Copy an entry's files into a folder that is closed to others, checking each on the way; gone at the end.

    It lies in the user's folder, or in the system's for temporary files where that one cannot take it.

    Yields:
        The folder; or what is wrong with a file.
    """
    last = UnreadableNow(COPIES_FOLDER, "")
    for base in (home / COPIES_FOLDER, None):
        with contextlib.ExitStack() as held:
            try:
                folder = held.enter_context(_in(base))
            except OSError as error:
                last = UnreadableNow(COPIES_FOLDER, in_brief(error))
                continue
            wrong = copy_files(entry, folder)
            if isinstance(wrong, UnreadableNow):
                last = wrong
                continue
            yield folder if wrong is None else wrong
            return
    yield last


def copy_files(entry: Entry, folder: Path) -> Damaged | UnreadableNow | None:
    """Copy an entry's files; say what is wrong with the first that is not what the manifest lists."""
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
        found = os.fstat(reading.fileno()).st_size
        if found != wanted.bytes:
            return WrongSize(source.name, found, wanted.bytes)
        return None if is_copied(reading, writing, wanted) else DigestDiffers(source.name)


def is_copied(source: BinaryIO, target: BinaryIO, wanted: FileRecord) -> bool:
    """Copy as many bytes as a record tells, and no more; whether they are the recorded ones. Raises OSError."""
    digest, left = blake3(), wanted.bytes
    while left and (chunk := source.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
        target.write(chunk)
    return not left and digest.hexdigest() == wanted.blake3
