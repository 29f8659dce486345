"""How long graphs took to restore on this machine when they were restored last, for lists.

One file in the user's folder, which may be missing, damaged or not writable. Where two processes write it at once, some
times of one are lost.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from ..files import read_regular, replace_text
from ..layout import machine_id
from .listing import id_of

_MOST_BYTES = 1 << 20
_MOST = 10_000  # graphs; of more, those restored longest ago are forgotten


def read(home: Path) -> dict[str, float]:
    """Read the seconds of each graph by its id; nothing where no readable file is there."""
    try:
        data = json.loads(read_regular(_file(home), _MOST_BYTES))
    except (OSError, ValueError, RecursionError, MemoryError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {name: float(value) for name, value in data.items() if type(value) in (int, float) and 0 <= value < 1e5}


def remember(home: Path, seconds: Mapping[str, float]) -> None:
    """Add what restores took, by the folders of the graphs. Never raises OSError."""
    new = {id_of(folder): value for folder, value in seconds.items()}
    known = read(home)
    if all(known.get(name) == value for name, value in new.items()):
        return
    rows = [*{**{name: value for name, value in known.items() if name not in new}, **new}.items()]
    with contextlib.suppress(OSError, MemoryError):
        replace_text(_file(home), json.dumps(dict(rows[-_MOST:]), separators=(",", ":")))


def _file(home: Path) -> Path:
    return home / f"{machine_id()}-restore-times.json"
