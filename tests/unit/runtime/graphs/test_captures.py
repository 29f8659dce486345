"""When a loaded graph's calls are captured as CUDA graphs."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from onegraph.backends import cuda_graphs
from onegraph.backends.cuda_graphs import CudaGraphs
from onegraph.runtime.graphs.captures import Captures

# What is looked at of a tensor on a GPU: nothing is captured here.
INPUTS: Any = (SimpleNamespace(shape=torch.Size([2]), device=torch.device("cuda")),)


class _Trials:
    """Nobody has measured anything."""

    def pays(self, shapes: str) -> bool | None:
        return None

    def remember(self, shapes: str, pays: bool) -> None: ...


def captures(graphs: CudaGraphs | None, **how: bool) -> Captures:
    def marker() -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    known: dict[str, Any] = {"shown": True, "permitted": True, "alone": True, **how}
    return Captures(graphs, _Trials(), marker=marker, **known)


@pytest.fixture
def graphs() -> CudaGraphs:
    """Of a function that was called often enough to be captured."""
    made = CudaGraphs(lambda *inputs: torch.zeros(2))
    for _ in range(cuda_graphs.policy.after):
        made(*INPUTS)
    return made


def test_calls_that_come_again_are_due(graphs: CudaGraphs) -> None:
    one = captures(graphs)
    assert one.are_due(INPUTS)
    with one.paused():
        assert not one.are_due(INPUTS)
    assert one.are_due(INPUTS)


@pytest.mark.parametrize("how", [{"shown": False}, {"permitted": False}, {"alone": False}])
def test_nothing_is_due_where_it_may_not_be(graphs: CudaGraphs, how: dict[str, bool]) -> None:
    assert not captures(graphs, **how).are_due(INPUTS)
    assert not graphs.due(INPUTS)  # forbidden in what captures, too


def test_what_a_process_has_shown_is_allowed(graphs: CudaGraphs) -> None:
    one = captures(graphs, shown=False)
    one.allow()
    graphs(*INPUTS)  # what was forbidden counts from the beginning
    assert one.possible and one.are_due(INPUTS)


@pytest.mark.parametrize("how", [{"permitted": False}, {"alone": False}])
def test_what_is_not_permitted_stays_so(graphs: CudaGraphs, how: dict[str, bool]) -> None:
    one = captures(graphs, shown=False, **how)
    one.allow()
    graphs(*INPUTS)
    assert not one.are_due(INPUTS) and not graphs.due(INPUTS)


def test_without_anything_that_captures() -> None:
    one = captures(None)
    one.trim(0)
    assert not one.are_due(INPUTS) and one.held_bytes == one.release("needed") == 0
    with one.paused():
        pass
