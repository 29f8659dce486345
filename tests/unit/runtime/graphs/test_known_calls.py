"""A call by what was last checked: nothing is launched whose memory is gone, and nothing is given out that changed."""

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
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.binding import Held
from onegraph.runtime.graphs.call_context import CallContext
from onegraph.runtime.graphs.loaded_graph import CHANGED, LoadedGraph, Result
from onegraph.runtime.obtain import compiles
from onegraph.runtime.policy import ANY_SPEED


class Calls:
    """Calls of a graph that was bound and compared."""

    def __init__(self, graph: LoadedGraph) -> None:
        self.graph, self.module, self.counters, self.held = graph, toy.Toy(), Counters(), Held()
        self.looks, self.launches = 0, 0
        for _ in range(4):
            assert isinstance(self(None), Result)
        bound = graph._runners.of(self.module)
        runner: Any = bound.runner

        class Counting:
            """The runner, whose launches are counted."""

            def __call__(_, *inputs: torch.Tensor) -> Any:
                self.launches += 1
                return runner(*inputs)

            def __getattr__(_, name: str) -> Any:
                return getattr(runner, name)

        bound.runner = Counting()  # type: ignore[assignment]

    def __call__(self, unchanged: Callable[[], bool] | None) -> Any:
        inputs, context = toy.inputs(), CallContext(self.held, unchanged)
        return self.graph.call(self.module, inputs, toy.sizes(*inputs), self.module, self.counters, context)

    def looking(self, found: bool, launched: int) -> Callable[[], bool]:
        """What the caller checks, which counts. `launched`: how many launches there must have been by then."""

        def unchanged() -> bool:
            self.looks += 1
            assert self.launches == launched
            return found

        return unchanged


@pytest.fixture(params=[True, False], ids=["behind", "before"])
def calls(
    request: pytest.FixtureRequest, tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> Calls:
    monkeypatch.setenv("ONEGRAPH_CHECK_EVERY", "0")
    world = World(tmp_path / "home", source)
    monkeypatch.setattr(compiles, "compile_in_child", world.compile)
    monkeypatch.setattr(InductorBackend, "load", lambda backend, folder, device: Runner(world.module))
    process = world.process()
    process.policy = replace(ANY_SPEED, checks_behind_on=("cpu",) if request.param else ())
    found = world.obtain(process)
    assert isinstance(found, LoadedGraph)
    found._constants = toy.weight_table(toy.Call(world.module))
    return Calls(found)


def test_a_call_is_checked_once(calls: Calls) -> None:
    assert isinstance(calls(calls.looking(True, launched=calls.graph._checks_behind)), Result)
    assert (calls.launches, calls.looks, calls.counters.dropped_calls) == (1, 1, 0)


def test_what_changed_is_never_given_out(calls: Calls) -> None:
    behind = calls.graph._checks_behind
    assert calls(calls.looking(False, launched=behind)) is CHANGED
    assert (calls.launches, calls.counters.dropped_calls) == (behind, behind)


GONE = ("its memory resized", "another module")  # what was there may not be read any more
MOVES: dict[str, Callable[[Any], Any]] = {
    "a weight replaced": lambda m: setattr(m.mix, "weight", torch.nn.Parameter(m.mix.weight.clone())),
    "its values elsewhere": lambda m: setattr(m.mix.weight, "data", m.mix.weight.data.clone()),
    "its memory resized": lambda m: m.mix.weight.untyped_storage().resize_(1 << 20),
    "turned": lambda m: setattr(m.mix.weight, "data", m.mix.weight.data.t()),
    "a bias less": lambda m: m.mix._parameters.pop("bias"),
    "another module": lambda m: None,
}


@pytest.mark.parametrize("move", MOVES)
def test_nothing_is_given_out_of_weights_that_moved(calls: Calls, move: str) -> None:
    MOVES[move](calls.module)
    if move == "another module":
        calls.module = toy.Toy()
    launched = calls.graph._checks_behind and move not in GONE  # looked at while the device computes
    assert calls(lambda: True) is CHANGED
    assert (calls.launches, calls.counters.dropped_calls) == (launched, launched)
    if move not in ("turned", "a bias less"):  # of which no graph is bound
        binds = calls.counters.binds
        assert isinstance(calls(None), Result) and calls.counters.binds == binds + 1
