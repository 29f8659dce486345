"""How many processes a compile is shared out to."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.models import toy

from onegraph.graph_cache.model_hash import ModelSource
from onegraph.runtime.obtain.compiles import job_of
from onegraph.runtime.request import WhenMissing

SHARED = 3


@pytest.mark.parametrize(
    ("device", "when_missing", "workers"),
    [("cpu", "wait", SHARED), ("cpu", "background", 0), ("cuda", "wait", SHARED), ("cuda", "background", SHARED)],
)
def test_a_compile_beside_a_run_on_a_cpu_is_not_shared_out(
    device: str, when_missing: WhenMissing, workers: int, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = toy.request(toy.Toy(), source)
    monkeypatch.setattr(type(asked.backend), "workers", lambda self, weights, device: SHARED)
    request = dataclasses.replace(asked, device=torch.device(device))
    job = job_of(request, None, when_missing)
    assert job.workers == workers
    assert bool(job.niceness) is (when_missing == "background")
