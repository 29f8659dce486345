"""Which cases of a large family run in `make test`: always the same ones; all of them in `make test-full`."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import pytest


def one_in(every: int, cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The cases, of which all but one in so many are marked `full`."""
    return [pytest.param(*case, marks=[] if is_chosen(every, repr(case)) else [pytest.mark.full]) for case in cases]


def is_chosen(every: int, name: str) -> bool:
    """Whether the case of that name is the one in so many, in every process."""
    return zlib.crc32(name.encode()) % every == 0


def named(value: object) -> str:
    """How a case's values read: what was replaced is kept alive, or dropped."""
    return {True: "kept", False: "dropped"}[value] if isinstance(value, bool) else str(value)
