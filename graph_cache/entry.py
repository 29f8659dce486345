"""An entry of the store: one folder with a manifest and the graph's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ..common.errors import in_brief
from ..common.reasons import UnreadableManifest
from .manifest import MANIFEST_FILE, Manifest


@dataclass(frozen=True)
class Entry:
    """A published graph: its folder and its manifest."""

    folder: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Size of the graph's files, as the manifest lists them."""
        return sum(f.bytes for f in self.manifest.files.values())


def read(folder: Path) -> Entry | UnreadableManifest:
    """Read the entry in a folder, without checking its files."""
    try:
        return Entry(folder, Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes()))
    except (OSError, ValidationError) as error:
        return UnreadableManifest(in_brief(error))
