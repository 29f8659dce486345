"""Blocks that write into what they are given, as Wan's causal ones into their caches, run eager: no graph does so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.dit_matrix import around
from support.models import dits
from support.scenes.nodes import assert_close, blocks, compiled, told
from support.scenes.sampling import Sampling

from onegraph.runtime.counters import Counters

NAME = "wan 2.1 causal"


def sampled(model: Any, **sides: int) -> torch.Tensor:
    sampling = Sampling(NAME, model, sampler="ar_video", steps=3, **sides)
    around.basic_guider(sampling)
    return sampling.run()


def test_causal_wan_keeps_its_caches(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dits.DITS, NAME, dits.Dit("WAN21_CausalAR_T2V", dits._WAN, (16, 3)))
    plain = dits.load(NAME)

    def check(**sides: int) -> dict[str, Any]:
        model = compiled(plain)
        found, wanted = sampled(model, **sides), sampled(plain, **sides)
        assert_close(found, wanted)
        return blocks()

    for _ in range(2):
        report = check()
        assert report["calls"] == 0 and {*report["eager_codes"]} == {"block_recorded", "block_writes"}, report
        assert "a block writes into a list, a dictionary or an object" in told()
    assert check(height=12, width=20)["calls"] == 0
    assert counters.compiles == 0
