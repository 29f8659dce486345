"""A user whose toy was compiled once per run; every test has a copy of that user's folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.processes.lives import Case, copy_case, live, new_case


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A user with the toy's graph, compiled by a real compile and checked by its first use; copy it to change it."""
    root = tmp_path_factory.mktemp("compiled")
    case = new_case(root / "user")
    first = live(case).fine()
    assert (first.compiles, first.compiled_calls) == (1, 1), first
    golden = Path(shutil.copytree(case.entry.folder, root / "golden"))
    return Case(case.root, golden)


@pytest.fixture
def case(compiled: Case, tmp_path: Path) -> Case:
    """That user's folders, for a test that harms them. Compiles give a copy of the same graph at once."""
    return copy_case(compiled, tmp_path / "user")


@pytest.fixture
def empty(compiled: Case, tmp_path: Path) -> Case:
    """A user without any graph, whose compiles give that graph at once."""
    return new_case(tmp_path / "user", compiled.golden)
