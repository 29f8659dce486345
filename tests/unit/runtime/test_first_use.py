"""First uses: what was compared, and what was not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from support.entries import key, publish

from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.first_use import Failed, FirstUseCheck, Trial
from onegraph.runtime.policy import ANY_SPEED


def test_a_call_without_finite_values_is_no_comparison(tmp_path: Path) -> None:
    """A graph that is wrong is found by the first call that can tell, whatever came before."""
    store = Store(tmp_path / "home")
    entry = publish(store, ModelSource(None, "0123456789ab"), key())

    def check(value: float, error: float) -> tuple[Any, FirstUseCheck]:
        x = torch.full((2, 4, 8, 8), value)
        trial = Trial((x,), {"batch": 2}, lambda given: given[0] + error, lambda x: x)
        first = FirstUseCheck(store, entry, ANY_SPEED, torch.device("cpu"), "")
        assert first.due(trial)
        return first.check(trial), first

    output, first = check(math.nan, 1.0)
    assert isinstance(output, torch.Tensor) and first.result.checked == {} and first.result.compiled_ms is None
    assert store.first_use(entry).checked == {}
    assert isinstance(check(1.0, 1.0)[0], Failed)
    assert check(1.0, 0.0)[1].result.checked == {"n": 0.0}
