"""The weights that a graph reads: a file of its entry, read only when the graph is loaded.

A UNet reads some 1,700, whose description is twenty times as large as the rest of the manifest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from blake3 import blake3
from pydantic import ValidationError

from ..common.errors import LoadError, in_brief
from ..common.tensor_meta import TensorMeta
from .entry import Entry
from .files import read_regular
from .manifest import CONSTANTS_FILE, MOST_BYTES, FileRecord, Manifest, Strict


class _Constants(Strict):
    """As in the file."""

    version: Literal[1] = 1
    constants: tuple[TensorMeta, ...]


def write(folder: Path, constants: tuple[TensorMeta, ...]) -> None:
    """Write the file into a folder that becomes an entry. Raises OSError."""
    (folder / CONSTANTS_FILE).write_text(_Constants(constants=constants).model_dump_json(), encoding="utf-8")


def constants_of(entry: Entry) -> tuple[TensorMeta, ...]:
    """Read the weights that a graph reads. Raises LoadError as `read` does."""
    return read(entry.manifest, entry.folder)


def read(manifest: Manifest, folder: Path) -> tuple[TensorMeta, ...]:
    """Read the weights of a graph whose files lie in a folder.

    Raises:
        LoadError: the file cannot be read, or is not the one that the manifest lists.
    """
    try:
        data = read_regular(folder / CONSTANTS_FILE, MOST_BYTES)
        found = FileRecord(bytes=len(data), blake3=blake3(data).hexdigest())
        if found != manifest.files.get(CONSTANTS_FILE):
            raise LoadError(f"{CONSTANTS_FILE} is not the one that was published")
        return _Constants.model_validate_json(data).constants
    except (OSError, MemoryError, ValidationError) as error:
        raise LoadError(f"{CONSTANTS_FILE}: {in_brief(error)}") from error
