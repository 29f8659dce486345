"""Whether an entry's files are what its manifest lists. Checked before anything of an entry is parsed or loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from ..common.errors import in_brief
from ..common.reasons import Damaged, DigestDiffers, MissingFile, UnreadableFile, WrongSize
from .entry import Entry
from .manifest import FileRecord


@dataclass(frozen=True)
class Sound:
    """Every file of the entry is what the manifest lists."""


def record(path: Path) -> FileRecord:
    """Measure a file: size and digest. Raises OSError."""
    return FileRecord(bytes=path.stat().st_size, blake3=blake3(path.read_bytes()).hexdigest())


def check(entry: Entry) -> Sound | Damaged:
    """Compare every file with the manifest; the first that differs is returned."""
    for name, wanted in entry.manifest.files.items():
        path = entry.folder / name
        # A name that leads out of the folder, or a link, stands for a file that is not the entry's.
        if Path(name).name != name or not path.is_file() or path.is_symlink():
            return MissingFile(name)
        try:
            size = path.stat().st_size
            if size != wanted.bytes:
                return WrongSize(name, size, wanted.bytes)
            if record(path) != wanted:
                return DigestDiffers(name)
        except OSError as error:
            return UnreadableFile(name, in_brief(error))
    return Sound()
