"""Each file of an entry, damaged in each way: the image is eager's or right, once, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes.faults import DAMAGES, overwritten, pipe, removed, zeros
from support.processes.lives import Case, live
from support.store.entries import key, publish, snapshot

from onegraph.graph_cache.disk.marks import USES_FILE

FILES = ["constants.json", "graph.aoti", "manifest.json", "outcome.json", "signature.json"]
QUICK = (overwritten, removed, pipe, zeros)
MORE = tuple(damage for damage in DAMAGES if damage not in QUICK)
# What the first call after the damage may say; without any reason a graph served it.
SAID = {
    "unreadable_manifest", "not_a_regular_file", "missing_file", "wrong_size", "digest_differs", "compiled_again_later",
}  # fmt: skip


def test_these_are_all_files_of_an_entry(compiled: Case) -> None:
    assert sorted(path.name for path in compiled.entry.folder.iterdir()) == [USES_FILE, *FILES]


@pytest.mark.parametrize("damage", [*QUICK, *(pytest.param(one, marks=pytest.mark.full) for one in MORE)])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file(file: str, damage: Callable[[Path], None], case: Case) -> None:
    other = publish(case.store, case.source, key(component="toy"))
    before = snapshot(other.folder)
    damage(case.entry.folder / file)
    first = live(case, runs=2).fine()
    assert set(first.codes) <= SAID, first
    assert len(first.codes) <= 1, first  # the second run compiles again, if it must
    live(case).restored()
    assert case.compiles == first.compiles == (0 if file == "outcome.json" else 1)
    assert case.leftovers() == []
    assert snapshot(other.folder) == before
