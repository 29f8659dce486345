"""An entry of the store: one folder with a manifest and the graph's files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from blake3 import blake3
from pydantic import BaseModel, ValidationError

from ..common.errors import LoadError, in_brief
from ..common.reasons import (
    Damaged,
    NewerManifest,
    NotARegularFile,
    OlderManifest,
    TooLarge,
    UnreadableManifest,
    UnreadableNow,
)
from ..common.tensor_meta import TensorMeta
from .files import IrregularFileError, OversizedFileError, may_pass, read_regular
from .manifest import CONSTANTS_FILE, MANIFEST_FILE, MOST_BYTES, OLDEST, VERSION, FileRecord, Manifest, Strict


@dataclass(frozen=True)
class Entry:
    """A published graph: its folder and its manifest.

    Attributes:
        text: the manifest's bytes as they were read, which its signature is over.
    """

    folder: Path
    manifest: Manifest
    text: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True)
class Unparsed:
    """What may be an entry: its folder, and its manifest's bytes, of which nothing is known yet."""

    folder: Path
    text: bytes = field(repr=False)


class _AnyVersion(BaseModel):
    """What manifests of all versions have."""

    version: int


def read(
    folder: Path,
) -> Entry | Damaged | NewerManifest | OlderManifest | UnreadableNow:
    """Read the entry in a folder, without checking its files. Who signed it is asked before: see `trust.signing`."""
    first = _read(folder)
    return _read(folder) if isinstance(first, UnreadableManifest) else first  # it is damaged only if it reads so twice


def _read(
    folder: Path,
) -> Entry | Damaged | NewerManifest | OlderManifest | UnreadableNow:
    unparsed = read_text(folder)
    return parse(unparsed) if isinstance(unparsed, Unparsed) else unparsed


def read_text(folder: Path) -> Unparsed | Damaged | UnreadableNow:
    """Read the manifest's bytes in a folder."""
    try:
        return Unparsed(folder, read_regular(folder / MANIFEST_FILE, MOST_BYTES))
    except IrregularFileError:
        return NotARegularFile(MANIFEST_FILE)
    except OversizedFileError as error:
        return TooLarge(MANIFEST_FILE, error.size, MOST_BYTES)
    except (OSError, MemoryError) as error:
        if may_pass(error, folder / MANIFEST_FILE):
            return UnreadableNow(MANIFEST_FILE, in_brief(error))
        return UnreadableManifest(in_brief(error))


def parse(
    unparsed: Unparsed,
) -> Entry | UnreadableManifest | NewerManifest | OlderManifest | UnreadableNow:
    """Parse a manifest."""
    try:
        return Entry(unparsed.folder, Manifest.model_validate_json(unparsed.text), unparsed.text)
    except MemoryError as error:
        return UnreadableNow(MANIFEST_FILE, in_brief(error))
    except ValidationError as error:
        return _of_another_version(unparsed.text) or UnreadableManifest(in_brief(error))


def _of_another_version(text: bytes) -> NewerManifest | OlderManifest | None:
    """Tell whether a manifest is of a version that this one does not read."""
    with contextlib.suppress(ValidationError, MemoryError):
        version = _AnyVersion.model_validate_json(text).version
        if version > VERSION:
            return NewerManifest(version)
        if version < OLDEST:
            return OlderManifest(version)
    return None


# The weights that a graph reads are a file of their own, read only when the graph is loaded: a UNet reads some 1,700,
# whose description is twenty times as large as the rest of the manifest.


class _Constants(Strict):
    """As in the file."""

    version: Literal[1] = 1
    constants: tuple[TensorMeta, ...]


def write_constants(folder: Path, constants: tuple[TensorMeta, ...]) -> None:
    """Write the weights that a graph reads into a folder that becomes an entry. Raises OSError."""
    (folder / CONSTANTS_FILE).write_text(_Constants(constants=constants).model_dump_json(), encoding="utf-8")


def constants_of(entry: Entry) -> tuple[TensorMeta, ...]:
    """Read the weights that a graph reads.

    Raises:
        LoadError: the file cannot be read, or is not the one that the manifest lists.
    """
    try:
        data = read_regular(entry.folder / CONSTANTS_FILE, MOST_BYTES)
        record = FileRecord(bytes=len(data), blake3=blake3(data).hexdigest())
        if record != entry.manifest.files.get(CONSTANTS_FILE):
            raise LoadError(f"{CONSTANTS_FILE} is not the one that was published")
        return _Constants.model_validate_json(data).constants
    except (OSError, MemoryError, ValidationError) as error:
        raise LoadError(f"{CONSTANTS_FILE}: {in_brief(error)}") from error
