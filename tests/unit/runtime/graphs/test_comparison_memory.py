"""What comparisons take at their peak where memory is short: no more than eager by itself, by the bytes of tensors."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy
from support.models.live_bytes import elsewhere, peak_of
from support.store.entries import key, publish

from onegraph.common.outputs import mapped
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs import faithfulness, first_use, spot_check
from onegraph.runtime.graphs.first_use import ChangingEager, CheckFailed, Comparison, FirstUseCheck, QuantisingEager
from onegraph.runtime.graphs.spot_check import SpotChecks
from onegraph.runtime.policy import ANY_SPEED

CPU = torch.device("cpu")
INPUTS = (torch.randn(512, 1024).half(),)
Inputs = tuple[torch.Tensor, ...]


def block(x: torch.Tensor) -> torch.Tensor:
    """With an inner result of four times its size."""
    return torch.cat([x, x, x, x], -1).mul_(2.0)[..., :1024] + x


def changing(x: torch.Tensor) -> torch.Tensor:
    """The same in the place of its input."""
    return x.add_(torch.cat([x, x, x, x], -1).mul_(2.0)[..., :1024])


def graph(inputs: Inputs) -> torch.Tensor:
    return inputs[0] * 3.0


def exact(*inputs: torch.Tensor) -> torch.Tensor:
    return block(*(one.float() for one in inputs))


def quarter(inputs: Inputs) -> Inputs:
    return tuple(one[: len(one) // 4].clone() for one in inputs)


def whole(inputs: Inputs) -> None:
    return None


@pytest.fixture(autouse=True)
def device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is parked is in another memory than what is computed; pieces are small beside a call."""
    for module in (first_use, spot_check):
        monkeypatch.setattr(module, "fetched", lambda output, device: mapped(torch.clone, output))
    monkeypatch.setattr(first_use, "_in_system_memory", elsewhere)
    monkeypatch.setattr(first_use, "_has_room", lambda size, device: False)
    monkeypatch.setattr(faithfulness, "_PIECE", 2**12)


@pytest.fixture
def check(tmp_path: Path) -> FirstUseCheck:
    store = Store(tmp_path / "home")
    return FirstUseCheck(store, publish(store, ModelSource(None, "0123456789ab"), key()), ANY_SPEED, CPU, "")


def test_what_is_counted() -> None:
    """Four times the input, the result, and nothing of what was there before or is a view."""
    size = INPUTS[0].nbytes
    assert peak_of(lambda: block(*INPUTS)) == 5 * size
    assert peak_of(lambda: [INPUTS[0] + 1 for _ in range(3)]) == 3 * size
    assert peak_of(lambda: [(INPUTS[0] + 1).sum() for _ in range(3)]) < 1.1 * size
    assert peak_of(lambda: elsewhere(INPUTS[0])) == 0


CHANGING = ChangingEager(changing, (0,))


@pytest.mark.parametrize(
    "eager", [block, CHANGING, QuantisingEager(block, exact, quarter), QuantisingEager(CHANGING, exact, quarter)]
)
@pytest.mark.parametrize("apart", [False, True])
def test_no_comparison_takes_more_than_eager(eager: Any, apart: bool, check: FirstUseCheck) -> None:
    checks = SpotChecks(toy.ShapeRange((), ()), CPU, check, 1e9)
    comparison = Comparison(INPUTS, {}, graph, eager)
    before = INPUTS[0].clone()
    run, mine = (eager.run if isinstance(eager, QuantisingEager) else eager), (before.clone(),)
    most = 1.02 * peak_of(lambda: run(*mine))
    for compare in (checks.first, checks.later):
        found: list[Any] = []
        taken = peak_of(lambda: found.append(compare(comparison, block, contextlib.nullcontext, apart)))  # noqa: B023
        output, failed = found[0]
        assert failed is None and torch.equal(output, block(*INPUTS)) and torch.equal(*INPUTS, before)
        assert taken <= most, f"{compare.__name__}: {taken / most:.2f} of what eager takes"


@pytest.mark.parametrize(("free", "stays"), [(64, True), (63, False)])
def test_results_stay_on_a_device_with_room(free: int, stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of them are a sixteenth of what is free or less: what torch has and nobody uses is free, too."""
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free - 10, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert first_use._has_room(4, torch.device("cuda", 0)) is stays
    output = torch.empty(2, device="meta"), torch.empty(3, device="meta")
    monkeypatch.setattr(first_use, "_has_room", lambda size, device: (size, device.type, stays) == (20, "meta", True))
    monkeypatch.setattr(first_use, "_in_system_memory", lambda tensor: torch.empty(tensor.shape))
    parked = first_use.parked(output)
    assert [one.device.type for one in parked] == ["meta" if stays else "cpu"] * 2
    assert not {*map(id, parked)} & {*map(id, output)}


def test_float32_of_the_whole_call_takes_more(check: FirstUseCheck) -> None:
    """What the test above would find."""
    comparison = Comparison(INPUTS, {}, graph, QuantisingEager(block, exact, whole))
    assert peak_of(lambda: check.check(comparison)) > 1.5 * peak_of(lambda: block(*INPUTS))


def test_a_graph_that_is_wrong_in_a_part_is_found_by_it(check: FirstUseCheck) -> None:
    """Within what would be rounding, but further from the exact result than eager."""
    wrong = Comparison(INPUTS, {}, lambda inputs: graph(inputs) * 1.01, QuantisingEager(block, exact, quarter))
    assert isinstance(check.check(wrong), CheckFailed)


def test_two_right_results_of_a_call_are_as_far_from_each_other_as_of_its_part() -> None:
    """Quantised, both are far from the exact one; a call that differs by much more than its part is wrong."""

    def quantised(x: torch.Tensor, offset: float) -> torch.Tensor:
        return (block(x) / 2 + offset).round() * 2

    def eager(x: torch.Tensor) -> torch.Tensor:
        return quantised(x, 0.2)

    judged_by = QuantisingEager(eager, exact, quarter)
    for error, kind in [(1.0, faithfulness.Faithful), (-1.0, faithfulness.Unfaithful)]:

        def run(inputs: Inputs, error: float = error) -> torch.Tensor:
            result = quantised(*inputs, -0.2)
            return result * error if len(result) == len(INPUTS[0]) else result

        verdict = Comparison(INPUTS, {}, run, judged_by).verdict(run(INPUTS), eager(*INPUTS))
        assert isinstance(verdict, kind) and verdict.rel_l2 > faithfulness.BOUNDS[torch.float16]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, NotImplementedError])
def test_where_float32_is_left_out_the_reason_says_so(error: type[Exception], check: FirstUseCheck) -> None:
    def failing(*inputs: torch.Tensor) -> torch.Tensor:
        raise error("no")

    comparison = Comparison(INPUTS, {}, graph, QuantisingEager(block, failing, quarter))
    assert not isinstance(check.check(comparison), CheckFailed)
    assert check.inexact is not None and check.inexact.code == "not_compared_exactly"
    assert error.__name__ in check.inexact.text
    assert not isinstance(
        check.check(Comparison(INPUTS, {}, graph, QuantisingEager(block, exact, quarter))), CheckFailed
    )
    assert check.inexact is None


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, ValueError, KeyboardInterrupt])
def test_inputs_that_eager_changes_are_what_they_were(error: type[BaseException], check: FirstUseCheck) -> None:
    """Also where it fails in the midst of them, and where the graph is wrong: the call is eager's then."""

    def failing(x: torch.Tensor) -> torch.Tensor:
        x.fill_(7.0)
        raise error("no")

    before = INPUTS[0].clone()
    checks = SpotChecks(toy.ShapeRange((), ()), CPU, check, 1e9)
    for compare in (checks.first, checks.later):
        for eager in (failing, changing):
            comparison = Comparison(INPUTS, {}, lambda inputs: graph(inputs) * 2, ChangingEager(eager, (0,)))
            with contextlib.suppress(error):
                _, failed = compare(comparison, block, contextlib.nullcontext, False)
                assert failed is None or torch.equal(failed.reference, block(*INPUTS))  # type: ignore[arg-type]
                assert (failed is None) == (eager is failing)
            assert torch.equal(*INPUTS, before)
