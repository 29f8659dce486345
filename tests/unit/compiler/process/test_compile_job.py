"""A finished graph is run once, with zeros, before anything uses it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from onegraph.common.errors import CompileError
from onegraph.compiler.process.compile_job import _Built, _check

NAN = float("nan")
ZEROS = {"mix.weight": torch.zeros(2, 2), "scale": torch.zeros(1)}


class Graph:
    """A graph whose calls return these values, one after the other; it reads the weights of these names."""

    cuda_graphs = None

    def __init__(self, *values: float, names: tuple[str, ...] = ("mix.weight", "scale")) -> None:
        self._values, self._names = [*values], names
        self.bound: Mapping[str, torch.Tensor] = {}

    def constant_names(self) -> tuple[str, ...]:
        return self._names

    def bind(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.bound = weights

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.tensor([0.0, self._values.pop(0)])


def check(graph: Graph, used: frozenset[str] = frozenset()) -> list[str]:
    constants, outputs = _check(_Built([], ZEROS, used), graph, ())
    assert outputs == 1
    return [one.name for one in constants]


def test_the_weights_that_it_reads_are_told() -> None:
    graph = Graph(1.0)
    assert check(graph, frozenset({"scale"})) == ["mix.weight", "scale"]
    assert float(graph.bound["scale"]) == 1  # models divide by such
    assert not graph.bound["mix.weight"].any()


@pytest.mark.parametrize(("again", "told"), [(NAN, "and again"), (0.0, "but finite ones")])
def test_values_that_are_not_finite_are_refused_and_said_whether_they_stay_so(again: float, told: str) -> None:
    with pytest.raises(CompileError, match=f"not finite for zero weights, {told} when run once more"):
        check(Graph(NAN, again))


def test_a_graph_reads_what_the_module_has_and_lists_what_it_uses() -> None:
    with pytest.raises(CompileError, match="wants another, which is no weight"):
        check(Graph(0.0, names=("another",)))
    with pytest.raises(CompileError, match="put the weight scale into the code by value"):
        check(Graph(0.0, names=("mix.weight",)), frozenset({"scale"}))
