"""One more family is one file: a toy module runs through `compile_module`."""

from __future__ import annotations

import pytest
import torch
from support.models.toy_family import WIDTH, Net, PipeToy

from onegraph.pipelines import compile_module, families
from onegraph.runtime.obtain.registry import Registry


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family is known while a test lasts."""
    known = [family for family in families.FAMILIES if type(family) is not PipeToy]
    monkeypatch.setattr(families, "FAMILIES", known)
    families.register(PipeToy())


def test_a_toy_family_runs_compiled(fresh: Registry) -> None:
    net = compile_module(Net())
    plain = Net()
    with torch.no_grad():
        for batch, height, width, tokens in ((2, 16, 16, 77), (1, 8, 24, 12), (6, 16, 16, 2)):
            given = torch.randn(batch, 4, height, width), 999 * torch.rand(batch), torch.randn(batch, tokens, WIDTH)
            torch.testing.assert_close(net(*given), plain(*given), rtol=1e-4, atol=1e-4)
    assert (fresh.counters.compiles, fresh.counters.eager_calls) == (1, 0), str(fresh.counters)
    assert fresh.counters.compiled_calls == 4  # six at a time are two calls
