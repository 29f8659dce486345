"""Blocks that a model calls by several methods: each has graphs of its own, and what a method calls is part of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy_poses, toy_runs
from support.scenes.process import new_process

from onegraph.compiler.blocks.repeated import entries_of
from onegraph.runtime.obtain.registry import Registry

FOUR, FIVE = (2, 4, 2, 3, 7), (2, 5, 2, 3, 7)  # batch, frames, height, width, tokens of the text
DEPTH = 3


class Runs(toy_runs.Runs):
    def __init__(self, model: toy_poses.Model) -> None:
        super().__init__(model, toy_poses.Client(), toy_poses.call)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, to which each test adds the graphs that it compiles."""
    return tmp_path_factory.mktemp("methods")


@pytest.fixture
def engine(home: Path) -> Iterator[Registry]:
    with new_process(home) as made, torch.no_grad():
        yield made


def same(mine: toy_poses.Model, runs: Runs, plain: toy_poses.Model, sizes: tuple[int, ...]) -> None:
    torch.testing.assert_close(runs(sizes), plain(*toy_poses.call(*sizes), {}), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine.buffers_seen[-1], plain.buffers_seen[-1], rtol=1e-4, atol=1e-5)


def test_the_methods_of_a_block_are_its_public_ones_with_layers() -> None:
    assert entries_of(toy_poses.Block(8)) == {"forward", "pose", "kept", "sampled"}
    assert entries_of(torch.nn.TransformerEncoderLayer(8, 2)) == {"forward"}


def test_each_method_is_served_and_other_frames_have_graphs_of_their_own(engine: Registry) -> None:
    model, plain = toy_poses.model(), toy_poses.model()
    runs = Runs(model)
    same(model, runs, plain, FOUR)
    assert (runs.eager, engine.counters.compiles) == ({"block_recorded": 2 * DEPTH}, 2)
    same(model, runs, plain, FIVE)  # the poses have a graph for all sizes
    assert (runs.eager, engine.counters.compiles) == ({"block_recorded": 3 * DEPTH}, 3)
    for sizes in (FOUR, FIVE, (3, 4, 5, 4, 3), (4, 5, 3, 2, 3)) * 2:
        same(model, runs, plain, sizes)
    assert (runs.eager, engine.counters.compiles) == ({"block_recorded": 3 * DEPTH}, 3)


def test_a_method_that_comes_later_has_a_graph_too(engine: Registry) -> None:
    model, plain = toy_poses.model(), toy_poses.model()
    model.cache, plain.cache = {}, {}
    runs = Runs(model)
    for _ in range(3):
        same(model, runs, plain, FOUR)
    assert (runs.eager, engine.counters.compiles) == ({"block_recorded": DEPTH}, 1)  # `kept`, once


def test_what_a_method_calls_is_part_of_it(engine: Registry) -> None:
    model, plain = toy_poses.model(), toy_poses.model()
    model.posed = plain.posed = False
    runs = Runs(model)
    for _ in range(3):
        same(model, runs, plain, FOUR)
    assert (runs.eager, engine.counters.compiles) == ({"block_recorded": DEPTH}, 1)


def test_a_restart_compiles_nothing(engine: Registry) -> None:
    model, plain = toy_poses.model(), toy_poses.model()
    runs = Runs(model)
    for sizes in (FIVE, FOUR):
        same(model, runs, plain, sizes)
    assert (runs.eager, engine.counters.compiles) == ({}, 0)


@pytest.mark.parametrize("method", ["pose", "sampled", "forward"])
def test_a_block_with_somebody_elses_method_is_eager(engine: Registry, method: str) -> None:
    model, plain = toy_poses.model(), toy_poses.model()
    runs = Runs(model)
    for one in (model, plain):
        of_class = getattr(toy_poses.Block, method)

        def changed(*args: Any, _of: Any = of_class, _block: Any = one.blocks[1], **kwargs: Any) -> Any:
            result = _of(_block, *args, **kwargs)
            return result * 0.5 if isinstance(result, torch.Tensor) else (result[0] * 0.5, *result[1:])

        vars(one.blocks[1])[method] = changed
    same(model, runs, plain, FOUR)
    assert runs.eager["block_replaced"] >= 1
    assert runs.compiled == 2 * (DEPTH - 1)
    del vars(model.blocks[1])[method], vars(plain.blocks[1])[method]
    same(model, runs, plain, FOUR)
    assert not any(method in vars(block) for block in model.blocks for method in entries_of(block))


def test_two_models_in_turns_and_within_each_other(engine: Registry) -> None:
    first, second = toy_poses.model(), toy_poses.model(1)
    runs = [Runs(first), Runs(second)]
    for _ in range(2):
        for mine, model, seed in zip(runs, (first, second), (0, 1), strict=True):
            same(model, mine, toy_poses.model(seed), FOUR)
    with runs[0].blocks.call():  # a call of another model, while this one's calls are routed
        same(second, runs[1], toy_poses.model(1), FOUR)
        torch.testing.assert_close(first(*toy_poses.call(*FOUR), {}), toy_poses.model()(*toy_poses.call(*FOUR), {}))
    assert not runs[0].eager and not runs[1].eager
