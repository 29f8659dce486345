"""Blocks that are called with a function: their graphs call it, and what it keeps, raises or returns is as by eager."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy_prefixes, toy_runs
from support.scenes.process import new_process

from onegraph.runtime.obtain import registry as registries
from onegraph.runtime.obtain.registry import Registry

FIRST = (2, 6, 10, 7)  # batch, height, width, tokens
OTHERS = [(1, 5, 7, 1), (4, 3, 8, 30), (2, 16, 16, 77), (1, 2, 2, 12)]
DEPTH = 3


class Runs(toy_runs.Runs):
    def __init__(self, model: toy_prefixes.Model) -> None:
        super().__init__(model, toy_prefixes.Client(), toy_prefixes.call)


@pytest.fixture(scope="module")
def compiled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the graphs of the toy's two kinds: with its prefix, and after it; copy it to change it."""
    home = tmp_path_factory.mktemp("calls")
    with new_process(home), torch.no_grad():
        runs = Runs(toy_prefixes.model())
        for _ in range(2):
            runs(FIRST)
        assert runs.eager == {"block_recorded": 2 * DEPTH}
        assert registries.registry().counters.compiles == 2
    return home


@pytest.fixture
def engine(compiled_home: Path, tmp_path: Path) -> Iterator[Registry]:
    with new_process(Path(shutil.copytree(compiled_home, tmp_path / "home"))) as made, torch.no_grad():
        yield made
        assert made.counters.compiles == 0


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cached", [True, False])
def test_all_sizes_are_served_and_the_cache_is_filled_as_by_eager(engine: Registry, cached: bool) -> None:
    model, plain = toy_prefixes.model(), toy_prefixes.model()
    if not cached:
        model.cache = plain.cache = None
    runs = Runs(model)
    for sizes in [FIRST, *OTHERS] * 3:  # in turns: what was kept for one is found again
        same(runs(sizes), plain(*toy_prefixes.call(*sizes), {}))
    assert (runs.compiled, runs.eager) == (15 * DEPTH, {})
    assert engine.counters.restores == (2 if cached else 1)
    if model.cache is not None and plain.cache is not None:
        assert [*model.cache] == [*plain.cache]
        for kept, wanted in zip(model.cache.values(), plain.cache.values(), strict=True):
            for number in range(DEPTH):
                for mine, other in zip(kept[number], wanted[number], strict=True):
                    same(mine, other)


class Counting:
    """Counts the calls of functions, and changes what they do."""

    def __init__(self, change: Callable[[Any], Any] | None = None) -> None:
        self.change = change
        self.calls: list[int] = []

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(args[0].shape[1])
            result = function(*args, **kwargs)
            return result if self.change is None else self.change(result)

        return call


def test_functions_are_called_once_in_eagers_order(engine: Registry) -> None:
    model, plain = toy_prefixes.model(), toy_prefixes.model()
    model.around, plain.around = mine, theirs = Counting(lambda x: x * 0.5), Counting(lambda x: x * 0.5)
    runs = Runs(model)
    for sizes in [FIRST, FIRST, *OTHERS]:
        same(runs(sizes), plain(*toy_prefixes.call(*sizes), {}))
    assert mine.calls == theirs.calls  # also where first uses were compared
    assert runs.eager == {}


class StopError(BaseException):
    """As an interrupt."""


@pytest.mark.parametrize("error", [ValueError, StopError, KeyboardInterrupt])
def test_what_a_function_raises_goes_through(engine: Registry, error: type[BaseException]) -> None:
    model = toy_prefixes.model()
    runs = Runs(model)
    same(runs(FIRST), toy_prefixes.model()(*toy_prefixes.call(*FIRST), {}))

    def raising(x: Any) -> Any:
        raise error("mine")

    model.around = Counting(raising)
    for _ in range(2):
        with pytest.raises(error, match="mine"):
            runs(FIRST)
    assert model.around.calls == [60, 60]
    model.around = None
    same(runs(FIRST), toy_prefixes.model()(*toy_prefixes.call(*FIRST), {}))
    assert runs.eager == {}


def _wider(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((x, x[:, -1:]), 1)


@pytest.mark.parametrize(
    "change", [_wider, torch.Tensor.double, lambda x: x.unsqueeze(0).squeeze(0).to(torch.bfloat16), lambda x: (x,)]
)
def test_another_result_than_the_graphs_is_eagers_business(engine: Registry, change: Callable[[Any], Any]) -> None:
    model, plain = toy_prefixes.model(), toy_prefixes.model()
    model.around, plain.around = Counting(change), Counting(change)
    runs = Runs(model)
    ends: list[Any] = []
    for call in (lambda: plain(*toy_prefixes.call(*FIRST), {}), lambda: runs(FIRST)):
        try:
            ends.append(float(call().sum()))
        except Exception as error:  # of the block, which cannot use it either
            ends.append(str(error))
    assert ends[0] == ends[1]
    assert {*runs.eager} <= {"attention_result"} and runs.compiled == 0


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        found = function(q, k, v, *args, **kwargs).clone()
        for one in (q, k, v):
            one.zero_()
        return found.mul_(2)

    return call


def _kept(function: Callable[..., Any], kept: list[torch.Tensor]) -> Callable[..., Any]:
    def call(q: Any, *args: Any, **kwargs: Any) -> Any:
        kept.append(q)
        found = function(q, *args, **kwargs)
        return found + sum(float(one.sum()) for one in kept[-2:]) * 0.01

    return call


@pytest.mark.parametrize("way", ["changes", "keeps", "partial", "method"])
def test_functions_that_change_and_keep_tensors(engine: Registry, way: str) -> None:
    class Holder:
        def __init__(self, function: Callable[..., Any]) -> None:
            self.function = function

        def attend(self, *args: Any, **kwargs: Any) -> Any:
            return self.function(*args, **kwargs)

    def around() -> Callable[[Any], Any]:
        if way == "keeps":
            return functools.partial(_kept, kept=[])
        if way == "partial":
            return functools.partial
        return _in_place if way == "changes" else lambda function: Holder(function).attend

    model, plain = toy_prefixes.model(), toy_prefixes.model()
    model.around, plain.around = around(), around()
    runs = Runs(model)
    for sizes in [FIRST, FIRST, *OTHERS]:
        same(runs(sizes), plain(*toy_prefixes.call(*sizes), {}))
    assert runs.eager == {}


@pytest.mark.parametrize("argument", [0, 2, "not contiguous"])
def test_a_function_that_holds_what_the_block_is_given_runs_eager(engine: Registry, argument: int | str) -> None:
    """It sees values that a graph writes at its end, or writes what the graph has read; also where that read a copy."""
    model, plain = toy_prefixes.model(), toy_prefixes.model()

    def holding(one: toy_prefixes.Model) -> None:
        held: list[Any] = []
        one.around = lambda function: functools.partial(_with_held, function, held)

        def hold(module: Any, args: Any) -> Any:
            held.append(args[0 if argument == "not contiguous" else argument])
            if argument == "not contiguous":
                held[-1] = held[-1].transpose(1, 2).contiguous().transpose(1, 2)
                return held[-1], *args[1:]
            return args

        one.around_inputs = hold

    holding(plain)
    holding(model)
    runs = Runs(model)
    for _ in range(2):
        same(runs(FIRST), plain(*toy_prefixes.call(*FIRST), {}))
    assert runs.eager == {"block_shared": 6} and runs.compiled == 0


def _with_held(function: Callable[..., Any], held: list[Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs) + held[-1].mean()


def test_two_samplings_in_turns_and_at_once(engine: Registry) -> None:
    models = [toy_prefixes.model(1), toy_prefixes.model(2)]
    wanted = [toy_prefixes.model(seed)(*toy_prefixes.call(*FIRST), {}) for seed in (1, 2)]
    runs = [Runs(model) for model in models]
    for _ in range(3):
        for one, result in zip(runs, wanted, strict=True):
            same(one(FIRST), result)
    failures: list[str] = []

    def sample(number: int) -> None:
        with torch.no_grad():
            try:
                for _ in range(10):
                    same(runs[number](FIRST), wanted[number])
            except Exception as error:
                failures.append(str(error))

    threads = [threading.Thread(target=sample, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [one.eager for one in runs] == [{}, {}]
