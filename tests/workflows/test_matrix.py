"""Workflows that people wire, through the real server: the plain image, and as many compiled calls as promised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.matrix.case import Case
from support.matrix.judge import Matrix, name_of, problems
from support.matrix.table import CASES

from .conftest import HAS_ONEFLOW

_without_oneflow = pytest.mark.skipif(not HAS_ONEFLOW, reason="OneFlow is not installed")


def _rows() -> Iterator[Any]:
    for case in CASES:
        for backend in case.backends:
            marks = [pytest.mark.full] if case.full else []
            marks += [_without_oneflow] if backend == "oneflow" else []
            yield pytest.param(case, backend, id=f"{name_of(case)}-{backend}", marks=marks)


@pytest.mark.parametrize(("case", "backend"), list(_rows()))
def test_the_image_is_eagers_and_calls_run_as_promised(case: Case, backend: str, matrix: Matrix) -> None:
    row = matrix.run(case, backend)
    assert list(problems(case, row)) == [], row


def test_nothing_was_compiled(matrix: Matrix) -> None:
    """Every graph was in the store, and served all sizes, prompts, LoRAs and checkpoints of its architecture."""
    assert matrix.rows or pytest.skip("no case ran")
    assert matrix.bench.status()["compiles"] == 0
