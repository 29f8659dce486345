"""Where calls have their weights after one ran out of memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from onegraph.common import reasons
from onegraph.runtime.calls.call_weights import CallWeights
from onegraph.runtime.calls.weight_source import Most


class _Source:
    """Brings weights block by block."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    @contextlib.contextmanager
    def most(self) -> Iterator[Any]:
        yield Most(self.module, frozenset({"block"}))


class _Run:
    """A run with all weights in place in some module. `source`: brings them where there is no room."""

    def __init__(self, held: torch.nn.Module, source: _Source | None) -> None:
        self.held, self.source = held, source

    @contextlib.contextmanager
    def weights(self, model: torch.nn.Module) -> Iterator[torch.nn.Module]:
        yield self.held

    def weight_source(self, model: torch.nn.Module, why: Any) -> _Source | None:
        return self.source


def _began(run: Any, model: torch.nn.Module, weights: CallWeights) -> CallWeights:
    with contextlib.ExitStack() as lasting:
        weights.begin(run, model, lasting)
    return weights


def test_after_memory_ran_out_weights_come_block_by_block() -> None:
    model, held = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    run: Any = _Run(held, _Source(held))
    weights = _began(run, model, CallWeights())
    assert not weights.by_block and weights.source is None
    assert weights.ran_out(run, model)  # the calls that follow have a way that this one had not
    _began(run, model, weights)
    assert weights.by_block and weights.source is run.source
    assert not weights.ran_out(run, model)  # there is no further way


def test_where_nothing_brings_weights_memory_has_run_out() -> None:
    model, held = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    run: Any = _Run(held, None)
    weights = _began(run, model, CallWeights())
    assert not weights.ran_out(run, model)
    assert not _began(run, model, weights).by_block


def test_a_models_own_weights_cannot_make_room() -> None:
    model = torch.nn.Linear(2, 2)
    run: Any = _Run(model, _Source(model))
    weights = _began(run, model, CallWeights())
    assert not weights.ran_out(run, model)
    assert weights.refusal is None or isinstance(weights.refusal, reasons.MemoryRanOut)
