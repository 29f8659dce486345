"""Each file of an entry, damaged in each way: the image is eager's or right, once, and nothing else is touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes.faults import DAMAGES, overwritten, pipe, removed, zeros
from support.processes.lives import Case, live
from support.store.entries import key, publish, snapshot

from onegraph.graph_cache.disk.marks import MODELS_FILE, USES_FILE

OF_A_COPY = ["constants.json", "graph.aoti", "manifest.json", "signature.json"]
FILES = [*OF_A_COPY, "outcome.json"]
QUICK = (overwritten, removed, pipe, zeros)
MORE = tuple(damage for damage in DAMAGES if damage not in QUICK)
damages = pytest.mark.parametrize("damage", [*QUICK, *(pytest.param(one, marks=pytest.mark.full) for one in MORE)])
# What the first call after the damage may say; without any reason a graph served it.
SAID = {
    "unreadable_manifest", "not_a_regular_file", "missing_file", "wrong_size", "digest_differs", "compiled_again_later",
}  # fmt: skip


def test_these_are_all_files_of_an_entry(compiled: Case) -> None:
    assert {path.name for path in compiled.entry.folder.iterdir()} == {MODELS_FILE, USES_FILE, *FILES}
    assert sorted(path.name for path in compiled.copy.iterdir()) == OF_A_COPY


@damages
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file(file: str, damage: Callable[[Path], None], case: Case) -> None:
    shutil.rmtree(case.copy)
    harm(case, file, damage, 0 if file == "outcome.json" else 1)


@pytest.mark.parametrize("file", FILES)
def test_a_copy_takes_the_place_of_what_is_damaged(file: str, case: Case) -> None:
    harm(case, file, overwritten, 0)


def harm(case: Case, file: str, damage: Callable[[Path], None], compiles: int) -> None:
    other = publish(case.store, case.source, key(component="toy"))
    before = snapshot(other.folder)
    damage(case.entry.folder / file)
    first = live(case, runs=2).fine()
    assert set(first.codes) <= SAID, first
    assert len(first.codes) <= 1, first  # the second run compiles again, if it must
    live(case).restored()
    assert case.compiles == first.compiles == compiles
    assert case.leftovers() == []
    assert snapshot(other.folder) == before


@damages
@pytest.mark.parametrize("file", OF_A_COPY)
def test_a_damaged_copy(file: str, damage: Callable[[Path], None], case: Case) -> None:
    """Where the home has nothing: one compile, which writes a whole one."""
    shutil.rmtree(case.home / "graphs")
    damage(case.copy / file)
    assert live(case).fine().compiles == 1
    shutil.rmtree(case.home / "graphs")
    live(case).restored()
    assert (case.compiles, case.leftovers()) == (1, [])
