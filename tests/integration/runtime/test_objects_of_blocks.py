"""Blocks that hold objects: a graph has what these are in it, and serves no block whose objects are others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy_objects, toy_runs
from support.scenes.process import new_process

SIZES = (2, 6, 10, 7)
DEPTH = 3
HOLDING: dict[str, Callable[[float], Any]] = {
    "an object": toy_objects.Scaling,
    "an object's method": lambda by: toy_objects.Scaling(by).scaled,
    "a function that another one makes": lambda by: toy_objects.scalings()[by],
}


def runs_of(model: toy_objects.Model) -> toy_runs.Runs:
    return toy_runs.Runs(model, toy_objects.Client(), toy_objects.call)


def same(runs: toy_runs.Runs) -> None:
    plain = toy_objects.model(runs.model.blocks[0].scaling)
    torch.testing.assert_close(runs(SIZES), plain(*toy_objects.call(*SIZES), {}), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("held", HOLDING)
def test_a_graph_is_of_the_objects_that_a_block_holds(held: str, tmp_path: Path) -> None:
    first, second = (toy_objects.model(HOLDING[held](by)) for by in (1.0, 2.0))
    with new_process(tmp_path) as registry, torch.no_grad():
        for number, model in enumerate((first, second), 1):
            runs = runs_of(model)
            for _ in range(3):
                same(runs)
            assert (runs.eager, registry.counters.compiles) == ({"block_recorded": DEPTH}, number)
    with new_process(tmp_path) as registry, torch.no_grad():
        for model in (second, first):
            same(runs := runs_of(model))
            assert (runs.eager, runs.compiled, registry.counters.compiles) == ({}, DEPTH, 0)
        # Behind its back, in a run: the other graph is there.
        if "function" in held:
            for block in first.blocks:
                block.scaling = second.blocks[0].scaling
        else:
            scaling = first.blocks[0].scaling
            getattr(scaling, "__self__", scaling).by = 2.0
        same(runs)
        assert (runs.eager, registry.counters.compiles) == ({}, 0)
