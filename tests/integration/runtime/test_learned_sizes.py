"""Kinds whose rules of sizes turn out too narrow: inferred again from all sizes seen, and compiled once more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.models import toy_memory
from support.models.toy_memory import DEPTH
from support.models.toy_runs import Reported
from support.scenes.process import new_process

from onegraph.runtime.calls import block_kinds
from onegraph.runtime.calls.run import Run
from onegraph.runtime.calls.session import BlockRun
from onegraph.runtime.guards.guard_cache import GuardCache
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.request import WhenMissing

FIRST, LONGER, OTHER = (6, 2), (9, 2), (23, 2)  # the memory's length, and how many rows
ROWS = (9, 5)
SIDES = [(2, 6, 10), (1, 5, 7), (3, 16, 12)]  # batch, height, width


class Runs(Reported):
    """Runs of one model, each beside the same model without graphs."""

    def __init__(self, when_missing: WhenMissing = "wait") -> None:
        self.model, self.plain = toy_memory.model(), toy_memory.model()
        self.run = Run()
        self.blocks = BlockRun(toy_memory.Client(when_missing), self.run, self.model, GuardCache())

    def __call__(self, *lengths: tuple[int, int]) -> None:
        for length, rows in lengths:
            for batch, height, width in SIDES:
                for one in (self.model, self.plain):
                    one.length, one.rows = length, rows
                x = torch.randn(batch, 4, height, width, generator=torch.Generator().manual_seed(height))
                with self.blocks.call():
                    result: torch.Tensor = self.model(x, {})
                torch.testing.assert_close(result, self.plain(x, {}), rtol=1e-4, atol=1e-5)

    @property
    def kinds(self) -> list[int]:
        """How many graphs were learned before each of those in use."""
        return [kind.learned for kind in self.blocks._kinds]


@pytest.fixture(scope="module")
def compiled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with two graphs of one kind, the second for memories of any length."""
    home = tmp_path_factory.mktemp("learned")
    with new_process(home) as registry, torch.no_grad():
        runs = Runs()
        runs(FIRST)
        assert (runs.compiled, runs.eager, registry.counters.compiles) == (2 * DEPTH, {"block_recorded": DEPTH}, 1)
        runs(LONGER)
        assert (runs.compiled, runs.eager, registry.counters.compiles) == (4 * DEPTH, {"block_recorded": 2 * DEPTH}, 2)
        runs(FIRST, OTHER, LONGER, FIRST)  # of all these the second graph has the rules: the first one is not asked
        assert (runs.compiled, runs.eager) == (16 * DEPTH, {"block_recorded": 2 * DEPTH})
        assert registry.counters.compiles == 2 and runs.kinds == [1]
    return home


@pytest.fixture
def registry(compiled_home: Path, tmp_path: Path) -> Iterator[Registry]:
    with new_process(Path(shutil.copytree(compiled_home, tmp_path / "home"))) as made, torch.no_grad():
        yield made


def test_a_new_process_restores_what_was_learned_where_it_needs_it(registry: Registry) -> None:
    runs = Runs()
    runs(FIRST)
    assert registry.counters.restores == 1 and runs.kinds == [0]
    runs(OTHER, FIRST, LONGER)
    assert registry.counters.restores == 2
    assert (runs.compiled, runs.eager, registry.counters.compiles) == (12 * DEPTH, {}, 0)


def test_a_process_that_needs_it_first_restores_both(registry: Registry) -> None:
    runs = Runs()
    runs(OTHER, FIRST)
    assert (runs.compiled, runs.eager) == (6 * DEPTH, {})
    assert (registry.counters.restores, registry.counters.compiles) == (2, 0)


def test_what_was_learned_is_learned_further(registry: Registry) -> None:
    runs = Runs()
    runs(FIRST, ROWS, OTHER, LONGER, ROWS, FIRST)
    assert (runs.compiled, runs.eager) == (17 * DEPTH, {"block_recorded": DEPTH})
    assert registry.counters.compiles == 1 and max(runs.kinds) == 2


def test_a_kind_is_learned_a_few_times_only(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_kinds, "MOST_LEARNED", 1)
    runs = Runs()
    runs(FIRST, ROWS, OTHER, ROWS)
    assert (runs.compiled, runs.eager) == (6 * DEPTH, {"block_sizes": 6 * DEPTH})
    assert registry.counters.compiles == 0


def test_where_nothing_is_compiled_blocks_run_eager(registry: Registry) -> None:
    runs = Runs("eager")
    runs(FIRST, ROWS, FIRST, OTHER)
    assert (runs.compiled, runs.eager) == (9 * DEPTH, {"no_graph": 3 * DEPTH})
    assert registry.counters.compiles == 0
