"""Trials of captures of baked graphs' calls, by children that only pretend: there is no GPU here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from onegraph.common import memory, reasons
from onegraph.runtime.obtain import capture_trials
from onegraph.runtime.obtain.capture_trials import CaptureTrials
from onegraph.runtime.obtain.child_load_test import Tried

GPU = torch.device("cuda", 0)


class Graph:
    """A baked graph that was called once."""

    def __init__(
        self, *, unmeasured: bool = True, call_rules: Any = None, captured: bool | None = None, permitted: bool = True
    ) -> None:
        self.retired: Any = None
        self.noted: list[bool] = []
        self.allowed = 0
        self.captures = SimpleNamespace(permitted=permitted)
        self.entry = SimpleNamespace(manifest=SimpleNamespace(unmeasured=unmeasured, call_rules=call_rules))
        result = SimpleNamespace(captured=captured, compiled_ms=1.0)
        self.first_use = SimpleNamespace(result=result, note_captured=self.noted.append)

    def allow_captures(self) -> None:
        self.allowed += 1


class Trials:
    """Trials of a process, and what each child tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tells: Tried | Exception = Tried(captured=True)
        self.children = 0
        self.room = 4 << 30
        self.of = CaptureTrials(None)  # type: ignore[arg-type]  # the store is the child's
        monkeypatch.setattr(capture_trials, "load_in_child", self.child)
        monkeypatch.setattr(memory, "available_bytes", lambda device: self.room)

    def child(self, *args: Any) -> Tried:
        self.children += 1
        if isinstance(self.tells, Exception):
            raise self.tells
        return self.tells

    def run(self, graph: Graph, device: torch.device = GPU) -> tuple[int, list[bool], int]:
        """A run that loads a graph and calls it: children in all, what was noted, how often captures were allowed."""
        request: Any = SimpleNamespace(device=device, label="a graph")
        request.without_module = lambda: request
        self.of.note(request, graph)  # type: ignore[arg-type]
        return self.end(graph)

    def end(self, graph: Graph) -> tuple[int, list[bool], int]:
        self.of.start(GPU)
        if self.of._thread is not None:
            self.of._thread.join()
        return self.children, graph.noted, graph.allowed


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    return Trials(monkeypatch)


def test_a_call_that_can_be_captured_is_from_then_on(trials: Trials) -> None:
    graph = Graph()
    assert trials.run(graph) == (1, [True], 1)
    assert trials.end(graph) == (1, [True], 1)  # once


def test_a_call_that_cannot_be_captured(trials: Trials) -> None:
    trials.tells = Tried(captured=False)
    assert trials.run(Graph()) == (1, [False], 0)


@pytest.mark.parametrize(
    "tells", [Tried(reasons.TrialPending("no memory")), Tried(reasons.DiedInTrial("killed")), OSError("full")]
)
def test_a_child_that_tells_nothing(trials: Trials, tells: Tried | Exception) -> None:
    """The graph is right all the same, and the next process asks again."""
    trials.tells = tells
    assert trials.run(Graph()) == (1, [], 0)


def test_not_before_the_first_use(trials: Trials) -> None:
    graph = Graph()
    graph.first_use.result.compiled_ms = None
    assert trials.run(graph) == (0, [], 0)
    graph.first_use.result.compiled_ms = 1.0
    assert trials.end(graph) == (1, [True], 1)


def test_not_without_room(trials: Trials) -> None:
    graph, trials.room = Graph(), 1 << 30
    assert trials.run(graph) == (0, [], 0)
    trials.room = 4 << 30
    assert trials.end(graph) == (1, [True], 1)


def test_a_graph_that_is_no_more(trials: Trials) -> None:
    graph = Graph()
    graph.retired = reasons.GraphClosed()
    assert trials.run(graph) == (0, [], 0)


@pytest.mark.parametrize(
    "how", [{"unmeasured": False}, {"call_rules": {}}, {"captured": True}, {"captured": False}, {"permitted": False}]
)
def test_graphs_that_need_no_trial(trials: Trials, how: dict[str, Any]) -> None:
    assert trials.run(Graph(**how)) == (0, [], 0)


def test_no_trial_on_a_processor(trials: Trials) -> None:
    assert trials.run(Graph(), torch.device("cpu")) == (0, [], 0)
