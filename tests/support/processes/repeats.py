"""Repetitions of a test in which chance has a part: a few always, all of them under `make test-full`."""

from __future__ import annotations

from typing import Any

import pytest


def repeated(quick: int, full: int) -> list[Any]:
    """Give parameters 0, 1, ...; those from `quick` on are for `make test-full`."""
    return [pytest.param(number, marks=pytest.mark.full if number >= quick else ()) for number in range(full)]
