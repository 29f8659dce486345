"""Whether an entry's files are what its manifest lists. Checked before anything of an entry is parsed or loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

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
from .files import IrregularFileError, OversizedFileError, may_pass, open_regular, read_regular
from .manifest import FileRecord

_CHUNK = 1 << 20


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
    bad = check_names(entry.manifest)
    if bad is not None:
        return bad
    for name, wanted in entry.manifest.files.items():
        try:
            # A disk or network that fails for a moment may give other bytes: only what differs twice is damage.
            wrong = _compare(entry.folder / name, wanted) and _compare(entry.folder / name, wanted)
        except (FileNotFoundError, NotADirectoryError):
            return MissingFile(name)
        except IrregularFileError:
            return NotARegularFile(name)
        except (OSError, MemoryError) as error:
            return (UnreadableNow if may_pass(error, entry.folder / name) else UnreadableFile)(name, in_brief(error))
        if wrong is not None:
            return wrong
    return Sound()


def read_file(entry: Entry, name: str) -> bytes | Damaged | UnreadableNow:
    """Read one of an entry's files, if it is what the manifest lists."""
    wanted = entry.manifest.files[name]
    try:
        data = read_regular(entry.folder / name, wanted.bytes)
    except FileNotFoundError:
        return MissingFile(name)
    except OversizedFileError as error:
        return WrongSize(name, error.size, wanted.bytes)
    except IrregularFileError:
        return NotARegularFile(name)
    except (OSError, MemoryError) as error:
        return UnreadableNow(name, in_brief(error))
    return differs(name, data, wanted) or data


def differs(name: str, data: bytes, wanted: FileRecord) -> WrongSize | DigestDiffers | None:
    """What differs between the bytes of a file and its record."""
    if len(data) != wanted.bytes:
        return WrongSize(name, len(data), wanted.bytes)
    return None if blake3(data).hexdigest() == wanted.blake3 else DigestDiffers(name)


def _compare(path: Path, wanted: FileRecord) -> WrongSize | DigestDiffers | None:
    """What differs between a file and its record. One of another size is not read. Raises OSError."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
    if size != wanted.bytes:
        return WrongSize(path.name, size, wanted.bytes)
    return DigestDiffers(path.name) if record(path) != wanted else None


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
