"""Marks beside a graph that no signature is over: when it was last used, how often, by which models, and pins.

`.uses` has one byte for each time that a process restored the graph, and its time of modification is the last use.
`.models` has one line for each model that it served. Both are appended to in one step, so that processes need no lock.
`.pinned` is empty. None decides what is loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..files import SAFELY, read_regular
from ..layout import GRAPHS_SUFFIX, beside
from ..model_hash import ModelSource

USES_FILE = ".uses"
MODELS_FILE = ".models"
PIN_FILE = ".pinned"

_MOST_BYTES = 1 << 20  # of the models


@dataclass(frozen=True)
class Model:
    """A model that a graph served.

    Attributes:
        digest: 12 hex digits.
        beside: the folder beside its checkpoint for copies of its graphs; empty where no checkpoint is known.
    """

    digest: str
    beside: str

    @property
    def name(self) -> str:
        """`<checkpoint>/<model hash>`, for people."""
        stem = os.path.basename(self.beside).removesuffix(GRAPHS_SUFFIX)  # noqa: PTH119 - there may be thousands
        return f"{stem or 'unknown'}/{self.digest}"


def note_use(folder: Path, how: Literal["compiled", "restored"], model: ModelSource) -> None:
    """Record that this process loaded an entry for a model; a restore counts as a use. Never raises OSError."""
    with contextlib.suppress(OSError):
        _append(folder / USES_FILE, b"." if how == "restored" else b"")
        location = beside(model)
        line = os.fsencode(f"{model.digest}\t{'' if location is None else os.path.abspath(location.parent)}")  # noqa: PTH100
        if b"\n" not in line and line not in _lines(folder):
            _append(folder / MODELS_FILE, line + b"\n")


def _append(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | SAFELY, 0o644)
    try:
        os.write(handle, data)
        os.utime(path if os.utime not in os.supports_fd else handle)
    finally:
        os.close(handle)


def models(folder: Path) -> tuple[Model, ...]:
    """Read which models an entry served, the first one first; none where nobody can tell."""
    # Whatever bytes are in it: fsdecode raises on Windows for what is no UTF-8.
    texts = (line.decode(sys.getfilesystemencoding(), "surrogateescape") for line in _lines(folder))
    rows = [text.partition("\t") for text in texts]
    return tuple(Model(digest, path) for digest, _, path in rows if digest)


def _lines(folder: Path) -> list[bytes]:
    with contextlib.suppress(OSError):
        return [*dict.fromkeys(read_regular(folder / MODELS_FILE, _MOST_BYTES).splitlines())]
    return []


def pin(folder: Path) -> None:
    """Keep an entry until it is unpinned. Raises OSError."""
    os.close(os.open(folder / PIN_FILE, os.O_WRONLY | os.O_CREAT | SAFELY, 0o644))


def unpin(folder: Path) -> None:
    """Take a pin away, if there is one. Raises OSError."""
    (folder / PIN_FILE).unlink(missing_ok=True)
