from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support.models import toy

from onegraph.runtime.graphs import spot_check
from onegraph.runtime.graphs.first_use import Comparison, FirstUseCheck
from onegraph.runtime.graphs.spot_check import Schedule, SpotChecks, pair


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


def test_what_comparing_takes_is_of_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a video's blocks, copying and comparing results takes longer than computing them."""
    monkeypatch.setenv(spot_check.EVERY_VARIABLE, "1")
    clock = [time.perf_counter() + 60]  # after the schedule began
    compared = spot_check.faithfulness.compare

    def slowly(*outputs: Any) -> Any:
        clock[0] += 1.0
        return compared(*outputs)

    monkeypatch.setattr(spot_check, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(spot_check.faithfulness, "compare", slowly)
    checks = SpotChecks(toy.ShapeRange((), ()), torch.device("cpu"), cast(FirstUseCheck, None), share=0.5)

    def graph(*inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0] * 2

    comparison = Comparison((torch.ones(2),), {}, lambda inputs: graph(*inputs), graph)
    due = [checks.due(False)]
    checks.later(comparison, graph, contextlib.nullcontext, apart=False)
    for _ in range(3):
        clock[0] += 0.9
        due.append(checks.due(False))
    assert due == [True, False, False, True]


def test_a_comparison_that_is_ended_is_not_begun_anew_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(spot_check.EVERY_VARIABLE, "2")

    def ended(*outputs: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(spot_check.faithfulness, "compare", ended)
    checks = SpotChecks(toy.ShapeRange((), ()), torch.device("cpu"), cast(FirstUseCheck, None), share=1e9)
    comparison = Comparison((torch.ones(2),), {}, lambda inputs: inputs[0] * 2, lambda x: x * 2)
    assert [checks.due(False) for _ in range(2)] == [False, True]
    with pytest.raises(torch.OutOfMemoryError):
        checks.later(comparison, lambda x: x * 2, contextlib.nullcontext, apart=False)
    assert [checks.due(False) for _ in range(2)] == [False, True]


def test_a_check_that_costs_memory_is_put_off_for_as_long_again_at_most() -> None:
    schedule = Schedule(every=3, share=1e9)
    assert [schedule.due(costly=True) for _ in range(6)] == [False] * 5 + [True]
    schedule.checked(0.0)
    assert [schedule.due(costly=count < 3) for count in range(4)] == [False, False, False, True]


def test_eager_computes_a_block_before_its_graph_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what the graph returned lay beside all that eager needs."""
    monkeypatch.setenv(spot_check.EVERY_VARIABLE, "1")
    order: list[str] = []

    def named(name: str, factor: float) -> Callable[..., torch.Tensor]:
        def call(*inputs: torch.Tensor) -> torch.Tensor:
            order.append(name)
            return inputs[0] * factor

        return call

    checks = SpotChecks(toy.ShapeRange((), ()), torch.device("cpu"), cast(FirstUseCheck, None), 1e9)
    inputs = (torch.randn(3, 4),)
    for factor, apart, wanted in [
        (2.0, False, ["eager", "graph"]),
        (2.0, True, ["graph", "graph", "eager"]),  # what the graph calls is asked twice, eager's in its own turn
        (2.1, False, ["eager", "graph", "eager"]),
    ]:
        order.clear()
        graph = named("graph", factor)
        comparison = Comparison(inputs, {}, lambda given, graph=graph: graph(*given), named("eager", 2.0))
        assert checks.due(False)
        output, failed = checks.later(comparison, graph, contextlib.nullcontext, apart)
        torch.testing.assert_close(output, inputs[0] * factor)
        assert order == wanted and (failed is None) == (factor == 2.0)


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


@pytest.mark.parametrize("batched", [True, False])
def test_several_outputs_of_a_batch(batched: bool) -> None:
    """One element of each, unless one of them is of the whole batch: then the whole call is compared."""

    def several(x: torch.Tensor, context: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return 2 * x, context if batched else context.mean(0)

    inputs = toy.inputs(4, 8, 8)
    found, reference = pair(toy.exact(4), inputs, several(*inputs), several, several)
    torch.testing.assert_close(found, reference)
    assert [len(tensor) for tensor in found] == ([1, 1] if batched else [4, 5])


def test_an_input_without_a_batch_stays_whole() -> None:
    """Though it has as many rows as the batch has elements."""
    inputs = torch.randn(3, 4), torch.randn(3, 4)
    dims = toy.Dim("batch", 1, 4), toy.Dim("rows", 1, 4)
    shapes = toy.ShapeRange(
        dims, (toy.TensorSpec("x", ("batch", 4), "float32"), toy.TensorSpec("table", ("rows", 4), "float32"))
    )

    def module(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x @ table.T

    found, reference = pair(shapes, inputs, module(*inputs), module, module)
    torch.testing.assert_close(found, reference)
    assert reference.shape == (1, 3)


def test_of_one_image_a_quarter_runs_both_ways() -> None:
    module, inputs, sizes = toy.Toy(), toy.inputs(1, 12, 16), []

    def either(*given: torch.Tensor) -> torch.Tensor:
        sizes.append(given[0].shape)
        return module(*given)

    found, reference = pair(toy.shapes(), inputs, module(*inputs), either, either)
    torch.testing.assert_close(found, reference)
    assert sizes == [(1, 4, 6, 8)] * 2


def test_sizes_that_follow_are_cut_with_their_dimension() -> None:
    spec = toy.ShapeRange(
        (toy.Dim("batch", 1, 2), toy.Dim("height", 4, 32), toy.Dim("width", 4, 32)),
        tuple(
            toy.TensorSpec(name, ("batch", 4, f"height{more}", f"width{more}"), "float32")
            for name, more in (("x", ""), ("hint", "*8"), ("half", "/2"))
        ),
    )
    inputs, shapes = (torch.zeros(1, 4, 10, 14), torch.zeros(1, 4, 80, 112), torch.zeros(1, 4, 5, 7)), []

    def either(*given: torch.Tensor) -> torch.Tensor:
        shapes.append([tuple(tensor.shape[2:]) for tensor in given])
        return given[0]

    pair(spec, inputs, inputs[0], either, either)
    assert shapes == [[(5, 7), (40, 56), (3, 4)]] * 2


def test_a_graph_for_one_size_is_compared_at_that_size() -> None:
    module, inputs = toy.Toy(), toy.inputs(1, 8, 8)
    output = module(*inputs)
    found, reference = pair(toy.exact(1), inputs, output, module, module)
    assert found is output
    torch.testing.assert_close(found, reference)
