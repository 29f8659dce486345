"""The runners of a graph of blocks: one for each block, none of which captures its calls."""

from __future__ import annotations

from typing import Any, cast

import torch

from onegraph.backends import Runner
from onegraph.backends.cuda_graphs import CudaGraphs
from onegraph.runtime.graphs.bound_runners import BoundRunners


class Capturing:
    """What of a runner captures its calls."""

    def __init__(self) -> None:
        self.cuda_graphs = CudaGraphs(lambda *inputs: inputs[0])
        self.held_bytes = 0

    def is_due_after_a_call(self) -> bool:
        inputs = (torch.zeros(1),)
        self.cuda_graphs._calls[tuple(t.shape for t in inputs)] += 1  # as a call on a GPU is counted
        return self.cuda_graphs.due(inputs)


def runner() -> Runner:
    return cast(Runner, Capturing())


def capturing(one: Any) -> bool:
    assert isinstance(one, Capturing)
    return one.is_due_after_a_call()


def test_the_only_runner_of_a_graph_captures_its_calls() -> None:
    runners = BoundRunners(runner(), None)
    assert capturing(runners.of(torch.nn.Identity()).runner)


def test_none_of_several_captures_its_calls() -> None:
    """Each capture would keep the activations of its block, and nothing would ever ask for them back."""
    runners = BoundRunners(runner(), runner)
    blocks = [torch.nn.Identity() for _ in range(3)]
    ahead = runners.ahead()
    assert ahead is not None
    runners.keep(ahead)
    found = [runners.of(block).runner for block in blocks]
    assert len({*map(id, found)}) == 3 and ahead in found
    assert not any(map(capturing, found))
