"""The disk budget: how many bytes a user's graphs may take, and which go first.

Counted are the graphs that this user's installation made, in the graph folder and beside all checkpoints that it
knows, their small files included; what several entries share by hard links counts once. Quarantined graphs go first,
then those that nothing can use here any more, then the least recently used ones. One that is pinned stays, and so does
one in use.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from ..files import read_regular, replace_text
from ..manifest import Strict
from .listing import File, Listed

VARIABLE = "ONEGRAPH_DISK_BUDGET"
DEFAULT = 10 << 30
SETTINGS_FILE = "settings.json"  # in the user's graph folder
_MOST_BYTES = 64 << 10  # of it

_UNITS = {"": 1 << 30, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {f"{letter}IB": 1 << 10 * power for power, letter in enumerate("KMGT", 1)}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B|[KMGT]|)\s*", re.IGNORECASE)


def parse(text: str) -> int | None:
    """Read a number of bytes, such as `20GiB`, `500 MB` or `20` (GiB); None for 0, which is no limit.

    Raises:
        ValueError: it is none.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no size; write it like 20GiB, or 0 for no limit")
    unit = found[2].upper()
    return int(float(found[1]) * _UNITS[f"{unit}IB" if unit in "KMGT" and unit else unit]) or None


@dataclass(frozen=True)
class Budget:
    """How many bytes graphs may take, and who says so. None: no limit."""

    bytes: int | None
    origin: Literal["default", "environment", "setting"]


class _Settings(Strict):
    """What the user set, as in the file."""

    version: Literal[1] = 1
    disk_budget_bytes: int | None = Field(default=DEFAULT, ge=1)


def current(home: Path) -> Budget:
    """The budget from `ONEGRAPH_DISK_BUDGET`, else from the user's settings, else the default.

    What is no size, and settings that cannot be read, count as if they were not there.

    Args:
        home: the user's graph folder.
    """
    text = os.environ.get(VARIABLE, "")
    if text.strip():
        try:
            return Budget(parse(text), "environment")
        except ValueError:
            return Budget(DEFAULT, "default")
    try:
        return Budget(
            _Settings.model_validate_json(read_regular(home / SETTINGS_FILE, _MOST_BYTES)).disk_budget_bytes, "setting"
        )
    except (OSError, ValueError, MemoryError):
        return Budget(DEFAULT, "default")


def limit(home: Path) -> int | None:
    """The budget in bytes; None: no limit."""
    return current(home).bytes


def change(home: Path, most: int | None) -> None:
    """Write the user's setting, which counts where the environment has none. Raises OSError."""
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    replace_text(home / SETTINGS_FILE, _Settings(disk_budget_bytes=most).model_dump_json())


@dataclass(frozen=True)
class Group:
    """Entries that share files by hard links, which are freed when all are gone.

    Attributes:
        frees: bytes.
    """

    entries: tuple[Listed, ...]
    frees: int

    @property
    def used(self) -> float:
        """When one of them was used last."""
        return max(one.used for one in self.entries)


def groups(entries: Iterable[Listed]) -> list[Group]:
    """Put entries that share files together, in the order in which they go; without those that are pinned."""
    by_file: dict[File, list[Listed]] = defaultdict(list)
    made: list[list[Listed]] = []
    for one in entries:
        shared = max((file for file in one.files if file[2] > 1), key=lambda file: file[1], default=None)
        if shared is None:
            made.append([one])
        else:
            by_file[shared[0]].append(one)
    made += by_file.values()
    found = [Group(tuple(some), _bytes(some)) for some in made if not any(one.pinned for one in some)]
    return sorted(found, key=lambda group: (_rank(group.entries), group.used))


def _rank(entries: Sequence[Listed]) -> int:
    if all(one.quarantined for one in entries):
        return 0
    return 1 if all(one.unusable is not None for one in entries) else 2


def _bytes(entries: Sequence[Listed]) -> int:
    """Bytes that are free when these entries are gone. Links from elsewhere keep a file."""
    names: Mapping[File, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in entries:
        for file, size, links in one.files:
            counted = names[file]
            counted[0], counted[1], counted[2] = size, links, counted[2] + 1
    return sum(size for size, links, found in names.values() if found >= links)
