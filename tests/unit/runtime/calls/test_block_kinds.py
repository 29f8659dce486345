"""Kinds of blocks that wait for their compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy_blocks
from support.scenes.process import new_process

from onegraph.common.reasons import OtherResult
from onegraph.common.refused import Refused
from onegraph.runtime.calls.block_kinds import Differing, Kinds, _wrong_view
from onegraph.runtime.calls.run import Run
from onegraph.runtime.calls.run_block import RunBlock
from onegraph.runtime.guards.guard_cache import GuardCache
from onegraph.signature import views
from onegraph.signature.parameters import called, parameters_of
from onegraph.signature.size_rules import sizes_of


def test_a_kind_that_takes_the_place_of_one_that_waits_knows_its_call(tmp_path: Path) -> None:
    """As one whose calls have the results of modulation does: it may be the only block of its kind."""
    client, run, block = toy_blocks.Client(), Run(), toy_blocks.Single(16)
    x, scale = torch.randn(2, 5, 16), torch.randn(2, 16)
    named: dict[str, Any] = {"x": x, "vec": toy_blocks.Modulation(scale, scale), "kwargs": {}}
    other = {**named, "start": 3}
    with new_process(tmp_path):
        kinds, guards = Kinds(client, run), GuardCache()
        one = RunBlock("single", block, guards.of(block, client.rules()), block)
        assert one.look(client, run)
        one.kinds = kinds.of(one.architecture)
        first = kinds.find(one, named, "captured", Differing())
        assert not isinstance(first, Refused)
        kinds.note(first[0], named, first[1].leaves)
        kinds.instead(one, other)
        (waiting,) = kinds._pending
        assert [*one.kinds] == [waiting.kind] != [first[0]]
        found = waiting.kind.match(other)
        assert found is not None and waiting.seen == [sizes_of(found.leaves)]
        assert waiting.written is None  # the call is over


class Repeating(torch.nn.Module):
    """Has the first frame again where it was left fewer than it reaches back to, where its view has zeros."""

    def forward(self, x: torch.Tensor, kept: list[Any], at: list[int]) -> torch.Tensor:
        before = kept[at[0]]
        missing = 2 - before.shape[2]
        kept[at[0]] = x[:, :, -2:]
        at[0] += 1
        return torch.cat([before[:, :, :1].repeat(1, 1, missing, 1, 1), before, x], 2).cumsum(2)


@pytest.mark.parametrize(("frames", "wrong"), [(2, False), (1, True)])
def test_a_view_that_is_wrong_for_a_block_is_seen_at_its_first_call(
    frames: int, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "view_of", lambda block: places)
    monkeypatch.setattr("onegraph.signature.parameters.view_of", lambda block: places)
    places = views.Places(1, 2, "kept", "at")
    block, x, kept = Repeating(), torch.randn(1, 2, 2, 3, 3), [torch.randn(1, 2, frames, 3, 3)]
    named = views.opened(block, parameters_of(Repeating).bind((x, kept, [0]), {}))
    result = block(x, kept, [0]), kept
    refusal = _wrong_view(block, named, lambda: result)
    assert isinstance(refusal, OtherResult) is wrong and (refusal is None) is not wrong
    other = called(block, named)[0], [kept[0] + 1]
    assert isinstance(_wrong_view(block, named, lambda: other), OtherResult)
