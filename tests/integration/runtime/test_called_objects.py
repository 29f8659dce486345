"""Blocks that are called with an object: their graphs call its methods, and what it keeps is as by eager."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy_caches, toy_runs
from support.scenes.process import new_process

from onegraph.runtime.obtain import registry as registries
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.request import WhenMissing

FIRST = (2, 6, 10, 7)  # batch, height, width, tokens
OTHERS = [(1, 5, 7, 1), (4, 3, 8, 30), (1, 2, 2, 12)]
DEPTH = 3


class Runs(toy_runs.Runs):
    def __init__(self, model: toy_caches.Model, when_missing: WhenMissing = "wait") -> None:
        super().__init__(model, toy_caches.Client(when_missing), toy_caches.call)


@pytest.fixture(scope="module")
def compiled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the graph of the toy's one kind; copy it to change it."""
    home = tmp_path_factory.mktemp("objects")
    with new_process(home), torch.no_grad():
        runs = Runs(toy_caches.model())
        runs(FIRST)
        assert runs.eager == {"block_recorded": DEPTH}
        assert registries.registry().counters.compiles == 1
    return home


@pytest.fixture
def engine(compiled_home: Path, tmp_path: Path) -> Iterator[Registry]:
    with new_process(Path(shutil.copytree(compiled_home, tmp_path / "home"))) as made, torch.no_grad():
        yield made
        assert made.counters.compiles == 0


def same(result: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)


def test_what_an_object_keeps_and_a_function_is_told_is_as_by_eager(engine: Registry) -> None:
    """Also where nothing is returned, and where what is returned is not used."""
    model, plain = toy_caches.model(), toy_caches.model()
    runs = Runs(model)
    for sizes in [FIRST, *OTHERS] * 2:
        same(runs(sizes), plain(*toy_caches.call(*sizes), {}))
    assert (runs.compiled, runs.eager) == (8 * DEPTH, {})
    assert len(model.told) == len(plain.told) == 8 * DEPTH
    torch.testing.assert_close(model.told, plain.told, rtol=1e-3, atol=1e-3)
    assert [*model.kept] == [*plain.kept]
    for kept, wanted in zip(model.kept.values(), plain.kept.values(), strict=True):
        assert len(kept.keys) == len(wanted.keys) == 2  # each step, once
        for mine, other in zip(kept.keys, wanted.keys, strict=True):
            same(mine, other)
    assert len({one.data_ptr() for kept in model.kept.values() for one in kept.keys}) == 8 * DEPTH


class Other(toy_caches.Kept):
    """Another class with the same methods."""


def test_another_class_is_another_form(engine: Registry) -> None:
    model, plain = toy_caches.model(), toy_caches.model()
    runs = Runs(model, "eager")
    same(runs(FIRST), plain(*toy_caches.call(*FIRST), {}))
    model.instead = lambda kept: _as(Other, kept)
    same(runs(FIRST), plain(*toy_caches.call(*FIRST), {}))
    assert runs.compiled == DEPTH and sum(runs.eager.values()) == DEPTH
    assert [len(one.keys) for one in model.kept.values()] == [2] * DEPTH


def _as(cls: type[toy_caches.Kept], kept: toy_caches.Kept) -> toy_caches.Kept:
    made = cls()
    made.keys = kept.keys
    return made


def test_an_object_that_has_something_else_by_the_name_of_a_method_runs_eager(engine: Registry) -> None:
    model, plain = toy_caches.model(), toy_caches.model()
    runs = Runs(model, "eager")

    def halved(kept: Any) -> Any:
        made: Any = _as(toy_caches.Kept, kept)
        made.mixed = lambda keys, weight: keys * 0.5
        return made

    model.instead = plain.instead = halved
    same(runs(FIRST), plain(*toy_caches.call(*FIRST), {}))
    assert runs.compiled == 0 and {*runs.eager} == {"block_argument"}


def test_an_answer_where_there_was_none_is_eagers_business(engine: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    put = toy_caches.Kept.put

    def answering(self: Any, keys: Any) -> Any:
        put(self, keys)
        return keys

    monkeypatch.setattr(toy_caches.Kept, "put", answering)
    runs = Runs(toy_caches.model())
    same(runs(FIRST), toy_caches.model()(*toy_caches.call(*FIRST), {}))
    assert runs.compiled == 0 and runs.eager == {"attention_result": DEPTH}


def test_what_a_method_raises_goes_through(engine: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain = toy_caches.model(), toy_caches.model()
    runs = Runs(model)
    same(runs(FIRST), plain(*toy_caches.call(*FIRST), {}))

    def full(self: Any, keys: Any) -> None:
        raise KeyError("full")

    with monkeypatch.context() as context:
        context.setattr(toy_caches.Kept, "put", full)
        with pytest.raises(KeyError, match="full"):
            runs(FIRST)
    same(runs(FIRST), plain(*toy_caches.call(*FIRST), {}))
    assert runs.eager == {}


def test_a_function_that_changes_what_other_blocks_keep(engine: Registry) -> None:
    def crossing(model: toy_caches.Model) -> Any:
        def tell(y: Any) -> Any:
            model.told.append(float(y.sum()))
            for kept in model.kept.values():
                for keys in kept.keys:
                    keys.mul_(0.9)
            return y.zero_().mean(1)

        return tell

    model, plain = toy_caches.model(), toy_caches.model()
    model.tell, plain.tell = crossing(model), crossing(plain)
    runs = Runs(model)
    for _ in range(3):
        same(runs(FIRST), plain(*toy_caches.call(*FIRST), {}))
    torch.testing.assert_close(model.told, plain.told, rtol=1e-3, atol=1e-3)
    assert runs.eager == {} and runs.compiled == 3 * DEPTH


def test_two_samplings_in_turns_keep_what_is_theirs(engine: Registry) -> None:
    models, plains = ([toy_caches.model(seed) for seed in (1, 2)] for _ in range(2))
    runs = [Runs(model) for model in models]
    for _ in range(3):
        for one, plain in zip(runs, plains, strict=True):
            same(one(FIRST), plain(*toy_caches.call(*FIRST), {}))
    for model, plain in zip(models, plains, strict=True):
        for kept, wanted in zip(model.kept.values(), plain.kept.values(), strict=True):
            assert len(kept.keys) == len(wanted.keys) == 3
            for mine, other in zip(kept.keys, wanted.keys, strict=True):
                same(mine, other)
