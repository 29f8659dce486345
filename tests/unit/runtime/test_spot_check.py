from __future__ import annotations

import pytest
import torch
from support import toy

from onegraph.runtime import spot_check
from onegraph.runtime.spot_check import Schedule, pair


def test_one_call_in_so_many_is_due() -> None:
    schedule = Schedule(every=3)
    due = []
    for _ in range(9):
        due.append(schedule.due())
        if due[-1]:
            schedule.checked(0.0)
    assert due == [False, False, True] * 3


def test_a_costly_check_waits_until_its_share_is_small() -> None:
    schedule = Schedule(every=1)
    assert schedule.due()
    schedule.checked(3600.0)
    assert not any(schedule.due() for _ in range(50))


@pytest.mark.parametrize(("value", "calls"), [(None, 200), ("0", 0), ("7", 7), ("many", 200), ("-1", 0)])
def test_the_interval_is_a_setting(value: str | None, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(spot_check.EVERY_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(spot_check.EVERY_VARIABLE, value)
    assert spot_check.every() == calls
    assert not any(Schedule(every=0).due() for _ in range(300))


def test_of_a_batch_only_the_first_element_runs_eager() -> None:
    module, inputs = toy.Toy(), toy.inputs(4, 8, 8)
    output, sizes = module(*inputs), []

    def eager(*given: torch.Tensor) -> torch.Tensor:
        sizes.append(given[0].shape)
        return module(*given)

    found, reference = pair(toy.shapes(), inputs, output, module, eager)
    torch.testing.assert_close(found, reference)
    assert sizes == [(1, 4, 8, 8)]


def test_of_one_image_a_quarter_runs_both_ways() -> None:
    module, inputs, sizes = toy.Toy(), toy.inputs(1, 12, 16), []

    def either(*given: torch.Tensor) -> torch.Tensor:
        sizes.append(given[0].shape)
        return module(*given)

    found, reference = pair(toy.shapes(), inputs, module(*inputs), either, either)
    torch.testing.assert_close(found, reference)
    assert sizes == [(1, 4, 6, 8)] * 2


def test_a_graph_for_one_size_is_compared_at_that_size() -> None:
    module, inputs = toy.Toy(), toy.inputs(1, 8, 8)
    output = module(*inputs)
    found, reference = pair(toy.exact(1), inputs, output, module, module)
    assert found is output
    torch.testing.assert_close(found, reference)
