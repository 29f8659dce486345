"""A device whose memory runs out in a compiled call: captured CUDA graphs go, one more try, else eager for once."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy
from torch.multiprocessing.reductions import StorageWeakRef

from onegraph.common.reasons import MemoryRanOut
from onegraph.common.refused import Refused
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs import binding, out_of_memory
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

HELD = 1 << 30


class Exhausting:
    """A runner whose first calls find no memory."""

    def __init__(self, runner: Any, times: int, error: type[Exception] = torch.OutOfMemoryError) -> None:
        self._runner = runner
        self.times = times
        self.error = error
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.times:
            self.times -= 1
            raise self.error("CUDA out of memory. Tried to allocate 20.00 MiB.")
        result: torch.Tensor = self._runner(*inputs)
        return result


@pytest.fixture
def engine(home: Path) -> Registry:
    return Registry(Store(home), policy=ANY_SPEED)


@pytest.fixture
def graph(engine: Registry, source: ModelSource) -> LoadedGraph:
    """Used before, with captured calls that hold memory; another graph of the device holds some, too."""
    found = engine.obtain(toy.request(toy.Toy(), source), "wait", lambda progress: None)
    assert isinstance(found, LoadedGraph)
    serve(engine, found)
    other = Registry(engine.store, policy=ANY_SPEED).obtain(
        toy.request(toy.Toy(), source), "wait", lambda progress: None
    )
    assert isinstance(other, LoadedGraph)
    engine._graphs["other", "cpu"] = other
    for holds in (found, other):
        assert holds._runners.first.runner.cuda_graphs is not None
        holds._runners.first.runner.cuda_graphs.held_bytes = HELD
    return found


@functools.cache
def live() -> toy.Toy:
    """One model for all calls: another one's weights would end the captures, too."""
    return toy.Toy()


def serve(engine: Registry, graph: LoadedGraph) -> Any:
    module, inputs = live(), toy.inputs()
    served = graph.call(module, inputs, toy.sizes(*inputs), module, engine.counters)
    if not isinstance(served, Refused):
        torch.testing.assert_close(served.output, module(*inputs))
    return served


class Watched:
    """A runner in whose calls another thread acts, which no lock of Python's keeps from it."""

    def __init__(self, runner: Any, act: Callable[[], None]) -> None:
        self._runner = runner
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=self._act)
        thread.start()
        thread.join()
        result: torch.Tensor = self._runner(*inputs)
        return result


def test_weights_stay_during_a_call_though_somebody_else_needs_the_memory(engine: Registry, graph: LoadedGraph) -> None:
    """The host asks for memory in another thread, and the model is moved there: the call reads what it was bound to."""
    module, inputs = toy.Toy(), toy.inputs()
    expected = module(*inputs)
    old = [StorageWeakRef(weight.untyped_storage()) for weight in module.parameters()]
    during: list[int] = []

    def move() -> None:
        for weight in module.parameters():
            weight.data = torch.full_like(weight, torch.nan)
        binding.release_held(toy.CPU)
        gc.collect()
        during.append(sum(one.expired() for one in old))

    graph.call(module, inputs, toy.sizes(*inputs), module, engine.counters)  # which binds it
    graph._runners.first.runner = Watched(graph._runners.first.runner, move)
    served = graph.call(module, inputs, toy.sizes(*inputs), module, engine.counters)
    assert during == [0]
    assert not isinstance(served, Refused)
    torch.testing.assert_close(served.output, expected)
    assert all(one.expired() for one in old)


def test_all_captures_go_and_the_call_is_made_again(engine: Registry, graph: LoadedGraph) -> None:
    graph._runners.first.runner = runner = Exhausting(graph._runners.first.runner, 1)
    assert engine.captured_bytes() == engine.captured_bytes(toy.CPU) == 2 * HELD
    assert not isinstance(serve(engine, graph), Refused)
    assert (engine.captured_bytes(), runner.calls) == (0, 2)


def test_when_that_is_not_enough_one_call_runs_eager(engine: Registry, graph: LoadedGraph) -> None:
    graph._runners.first.runner = runner = Exhausting(graph._runners.first.runner, 2)
    refused = serve(engine, graph)
    assert refused.reason == MemoryRanOut()
    assert (engine.captured_bytes(), runner.calls, graph.retired) == (0, 2, None)
    assert not isinstance(serve(engine, graph), Refused)
    assert engine.counters.compiled_calls == 2


def test_the_same_at_a_graphs_first_use(engine: Registry, source: ModelSource) -> None:
    graph = engine.obtain(toy.request(toy.Toy(), source), "wait", lambda progress: None)
    assert isinstance(graph, LoadedGraph)
    graph._runners.first.runner = Exhausting(graph._runners.first.runner, 2)
    assert serve(engine, graph).reason == MemoryRanOut()
    assert not isinstance(serve(engine, graph), Refused)
    assert set(graph.first_use.result.checked) == {"n"}


def test_another_error_is_not_tried_again(engine: Registry, graph: LoadedGraph) -> None:
    graph._runners.first.runner = runner = Exhausting(graph._runners.first.runner, 1, ValueError)
    with pytest.raises(ValueError, match="out of memory"):
        serve(engine, graph)
    assert (runner.calls, engine.captured_bytes()) == (1, 2 * HELD)


def test_a_running_graph_keeps_its_captures(engine: Registry, graph: LoadedGraph) -> None:
    """The host may ask for memory in the midst of eager's reference at a first use, for one."""
    with graph._lock:
        assert engine.release_captures(toy.CPU, "needed") == HELD
    assert (graph.captured_bytes, engine.captured_bytes()) == (HELD, HELD)
    assert engine.release_captures(torch.device("cuda", 0), "needed") == 0  # another device
    assert engine.release_captures(toy.CPU, "needed") == HELD


@pytest.mark.parametrize("ooms", [0, 1])
def test_an_unnamed_error_may_be_a_refused_allocation(ooms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTInductor keeps the error to itself; on a GPU torch's allocator counts its refusals."""
    counted = iter([5, 5 + ooms])
    monkeypatch.setattr(out_of_memory, "_refusals", lambda device: next(counted))
    monkeypatch.setattr(out_of_memory.memory, "give_back", lambda device: None)
    made: list[str] = []

    def call() -> torch.Tensor:
        made.append("call")
        raise RuntimeError("run_func_(container) API call failed at model_container_runner.cpp, line 147")

    expected = torch.OutOfMemoryError if ooms else RuntimeError
    with pytest.raises(RuntimeError, match="API call failed") as caught:
        out_of_memory.retried(call, (lambda: made.append("room"),), torch.device("cuda", 0))
    assert type(caught.value) is expected
    assert made == ["room", "call"]
    assert out_of_memory.suspicious(caught.value, torch.device("cuda", 0))
