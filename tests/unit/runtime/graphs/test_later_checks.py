"""Comparing later calls with eager: what a check may cost the run, and when a quantised graph is judged by float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy
from support.store.world import Runner, World

from onegraph.backends.inductor import InductorBackend
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.runtime.graphs.first_use import QuantisingEager
from onegraph.runtime.graphs.loaded_graph import LoadedGraph, Result
from onegraph.runtime.obtain import compiles
from onegraph.runtime.policy import ANY_SPEED

Call = Callable[[Any], Result]


@pytest.fixture
def graph(tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> LoadedGraph:
    """Each of its calls is compared with eager."""
    monkeypatch.setenv("ONEGRAPH_CHECK_EVERY", "1")
    world = World(tmp_path / "home", source)
    monkeypatch.setattr(compiles, "compile_in_child", world.compile)
    monkeypatch.setattr(InductorBackend, "load", lambda backend, folder, device: Runner(world.module))
    process = world.process()
    process.policy = replace(ANY_SPEED, checks_share=1e9)
    found = world.obtain(process)
    assert isinstance(found, LoadedGraph)
    return found


@pytest.fixture
def call(graph: LoadedGraph) -> Call:
    module, inputs = toy.Toy(), toy.inputs()
    counters: Any = type("Counters", (), {"binds": 0, "compiled_calls": 0, "spot_checks": 0})()

    def called(eager: Any) -> Result:
        found = graph.call(module, inputs, toy.sizes(*inputs), eager, counters)
        assert isinstance(found, Result)
        return found

    return called


def test_a_check_that_finds_no_memory_keeps_the_graph(graph: LoadedGraph, call: Call) -> None:
    module, calls = toy.Toy(), []

    def without_memory(*inputs: torch.Tensor) -> torch.Tensor:
        calls.append(inputs)
        raise torch.OutOfMemoryError("no more")

    call(module)
    result = call(without_memory)
    assert len(calls) == 1
    assert result.refusal is None and graph.retired is None
    torch.testing.assert_close(result.output, module(*toy.inputs()))


def test_float32_judges_a_quantised_graph_where_it_is_further_from_eager_than_usual(
    graph: LoadedGraph, call: Call
) -> None:
    module, exact_calls = toy.Toy(), []

    def quantising(error: float) -> QuantisingEager:
        """Off by so much of its result, as the exact one is not."""

        def exact(*inputs: torch.Tensor) -> torch.Tensor:
            exact_calls.append(inputs)
            return module(*inputs)

        return QuantisingEager(lambda *inputs: module(*inputs) * (1 + error), exact, lambda inputs: None)

    call(quantising(1e-3))
    assert len(exact_calls) == 1, "a first use is always judged by it"
    call(quantising(0.9e-3))
    assert len(exact_calls) == 1, "as near as it was then"
    call(quantising(2e-3))
    assert len(exact_calls) == 2, "eager itself is further away this time"
    call(quantising(1.9e-3))
    assert len(exact_calls) == 2, "what was judged once is usual from then on"
    assert graph.retired is None


def test_a_quantised_graph_that_became_wrong_is_found(
    graph: LoadedGraph, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = toy.Toy()
    eager = QuantisingEager(lambda *inputs: module(*inputs) * 1.001, module, lambda inputs: None)
    call(eager)
    monkeypatch.setattr(Runner, "error", 1.0)
    assert call(eager).refusal is not None and graph.retired is not None
