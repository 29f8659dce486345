"""A finished graph is run once, with zeros, before anything uses it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import pytest
import torch

from onegraph.common.errors import CompileError
from onegraph.compiler.process.compile_job import _Built, _check
from onegraph.compiler.process.job import Done

NAN = float("nan")
ZEROS = {"mix.weight": torch.zeros(2, 2), "scale": torch.zeros(1)}


class Graph:
    """A graph whose calls return these values, one after the other; it knows its weights by their addresses alone.

    Attributes:
        cuda_graphs: of which a trial is one more call.
    """

    def __init__(self, *values: float, names: tuple[str, ...] = ("mix.weight", "scale")) -> None:
        self._values, self._names = [*values], names
        self._weights: dict[str, weakref.ref[torch.Tensor]] = {}
        self.cuda_graphs = self
        self.seen: list[dict[str, float]] = []

    def constant_names(self) -> tuple[str, ...]:
        return self._names

    def bind(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._weights = {name: weakref.ref(weight) for name, weight in weights.items()}

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        weights = {name: reference() for name, reference in self._weights.items()}
        self.seen.append({name: NAN if weight is None else float(weight.max()) for name, weight in weights.items()})
        return torch.tensor([0.0, self._values.pop(0)])

    def try_out(self, *inputs: torch.Tensor) -> bool:
        return bool(self(*inputs)[1] == 0)


def check(graph: Graph, used: frozenset[str] = frozenset()) -> Done:
    return _check(_Built([], ZEROS, used), graph, (), lambda message: None)


@pytest.mark.parametrize("capturable", [True, False])
def test_its_weights_are_zeros_that_live_until_the_last_call(capturable: bool) -> None:
    graph = Graph(1.0, 0.0 if capturable else 1.0)
    done = check(graph, frozenset({"scale"}))
    assert [one.name for one in done.constants] == ["mix.weight", "scale"]
    assert (done.outputs, done.cuda_graphs) == (1, capturable)
    assert graph.seen == [{"mix.weight": 0.0, "scale": 1.0}] * 2  # models divide by such


@pytest.mark.parametrize(("again", "told"), [(NAN, "and again"), (0.0, "but finite ones")])
def test_values_that_are_not_finite_are_refused_and_said_whether_they_stay_so(again: float, told: str) -> None:
    with pytest.raises(CompileError, match=f"not finite for zero weights, {told} when run once more"):
        check(Graph(NAN, again))


def test_a_graph_reads_what_the_module_has_and_lists_what_it_uses() -> None:
    with pytest.raises(CompileError, match="wants another, which is no weight"):
        check(Graph(0.0, names=("another",)))
    with pytest.raises(CompileError, match="put the weight scale into the code by value"):
        check(Graph(0.0, names=("mix.weight",)), frozenset({"scale"}))
