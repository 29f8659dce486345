"""What a node says of the backend that it was given, and why `auto` does not take the one before."""

from __future__ import annotations

import pytest
import torch

from onegraph import backends
from onegraph.backends import AVAILABLE, Availability
from onegraph.common import reasons
from onegraph.runtime.calls.backend_choice import describe

CPU = torch.device("cpu")
MISSING = Availability(reasons.MissingPackage("oneflow", "", "pip install oneflow"))
LOADS = Availability(reasons.LoadsOnly())


class _Able:
    def __init__(self, runs: Availability, compiles: Availability) -> None:
        self.can_run, self.can_compile = (lambda device: runs), (lambda device: compiles)


@pytest.mark.parametrize(
    ("inductor", "oneflow", "said"),
    [
        (_Able(AVAILABLE, AVAILABLE), _Able(AVAILABLE, AVAILABLE), "inductor"),
        (_Able(AVAILABLE, LOADS), _Able(AVAILABLE, AVAILABLE), f"oneflow (no inductor: {LOADS.text})"),
        (
            _Able(AVAILABLE, LOADS),
            _Able(MISSING, MISSING),
            f"cached graphs only (no inductor: {LOADS.text}; no oneflow: {MISSING.text})",
        ),
    ],
)
def test_auto_says_why_not_the_one_before(
    inductor: _Able, oneflow: _Able, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = {"inductor": inductor, "oneflow": oneflow}
    monkeypatch.setattr(backends, "get", able.__getitem__)
    assert describe("auto", CPU) == said


def test_a_backend_by_name_is_told_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "get", {"oneflow": _Able(MISSING, MISSING), "inductor": _Able(AVAILABLE, LOADS)}.get)
    assert describe("oneflow", CPU) == f"oneflow, which cannot run here: {MISSING.text}"
    assert describe("inductor", CPU) == "inductor"  # it runs what is stored
