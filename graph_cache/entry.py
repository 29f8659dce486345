"""An entry of the store: one folder with a manifest and the graph's files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from ..common.errors import in_brief
from ..common.reasons import Damaged, NotARegularFile, TooLarge, UnreadableManifest, UnreadableNow
from .files import IrregularFileError, OversizedFileError, is_passing, read_regular
from .manifest import MANIFEST_FILE, MOST_BYTES, Manifest


@dataclass(frozen=True)
class Entry:
    """A published graph: its folder and its manifest.

    Attributes:
        text: the manifest's bytes as they were read, which its signature is over.
    """

    folder: Path
    manifest: Manifest
    text: bytes = field(default=b"", compare=False, repr=False)

    @property
    def bytes(self) -> int:
        """Size of the graph's files, as the manifest lists them."""
        return sum(f.bytes for f in self.manifest.files.values())


def read(folder: Path) -> Entry | Damaged | UnreadableNow:
    """Read the entry in a folder, without checking its files."""
    try:
        try:
            return _read(folder)
        except ValidationError:  # a manifest is damaged only if it reads so twice
            return _read(folder)
    except IrregularFileError:
        return NotARegularFile(MANIFEST_FILE)
    except OversizedFileError as error:
        return TooLarge(MANIFEST_FILE, error.size, MOST_BYTES)
    except (OSError, ValidationError, MemoryError) as error:
        if is_passing(error):
            return UnreadableNow(MANIFEST_FILE, in_brief(error))
        return UnreadableManifest(in_brief(error))


def _read(folder: Path) -> Entry:
    data = read_regular(folder / MANIFEST_FILE, MOST_BYTES)
    return Entry(folder, Manifest.model_validate_json(data), data)
