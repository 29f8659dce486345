"""The disk budget: how many bytes a user's graphs may take, and who says so. What it does is in `inventory`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from ..files import replace_text
from ..manifest import Strict

VARIABLE = "ONEGRAPH_DISK_BUDGET"
DEFAULT = 10 << 30
SETTINGS_FILE = "settings.json"  # in the user's graph folder
_MOST_BYTES = 64 << 10  # of it

_UNITS = {"": 1 << 30, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {f"{letter}IB": 1 << 10 * power for power, letter in enumerate("KMGT", 1)}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B|[KMGT]|)\s*", re.IGNORECASE)


def parse(text: str) -> int | None:
    """Read a number of bytes; None for 0, which is no limit. A number without a unit counts GiB.

    Raises:
        ValueError: it is no size.

    >>> parse("20GiB") == parse("20") == 20 << 30
    True
    >>> parse("500 MB"), parse("0")
    (500000000, None)
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size; write it like 20GiB, or 0 for no limit")
    unit = match[2].upper()
    return int(float(match[1]) * _UNITS[f"{unit}IB" if unit in "KMGT" and unit else unit]) or None


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
    """Read the budget from `ONEGRAPH_DISK_BUDGET`, else from the user's settings, else take the default.

    A text that is no size, and settings that cannot be read, count as if they were not there.

    Args:
        home: the user's graph folder.
    """
    text = os.environ.get(VARIABLE, "")
    if text.strip():
        try:
            return Budget(parse(text), "environment")
        except ValueError:
            return Budget(DEFAULT, "default")
    settings = _Settings.read(home / SETTINGS_FILE, _MOST_BYTES)
    return Budget(DEFAULT, "default") if settings is None else Budget(settings.disk_budget_bytes, "setting")


def change(home: Path, most: int | None) -> None:
    """Write the user's setting, which counts where the environment has none. Raises OSError."""
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    replace_text(home / SETTINGS_FILE, _Settings(disk_budget_bytes=most).model_dump_json())
