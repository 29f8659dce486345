from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onegraph.common.reasons import NotFinite, OtherResult, TooFarFromExact
from onegraph.runtime.graphs import faithfulness
from onegraph.runtime.graphs.faithfulness import Faithful, Unfaithful, compare, compare_quantised, relative_l2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rounding_is_faithful_and_a_wrong_bias_is_not(dtype: torch.dtype) -> None:
    reference = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    assert isinstance(compare(reference.to(dtype).float().to(dtype), reference.to(dtype)), Faithful)
    wrong = reference + torch.tensor([0.5, 0.0, 0.0, 0.0])[None, :, None, None]
    assert isinstance(compare(wrong.to(dtype), reference.to(dtype)), Unfaithful)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_value_that_is_not_finite_is_unfaithful(value: float) -> None:
    reference = torch.randn(64)
    result = reference.clone()
    result[7] = value
    assert compare(result, reference).reason == NotFinite()  # type: ignore[union-attr]


def test_a_models_own_overflow_is_not_the_graphs_fault() -> None:
    reference = torch.randn(64)
    reference[3] = math.inf
    assert isinstance(compare(reference.clone(), reference), Faithful)
    assert isinstance(compare(torch.randn(64), reference), Unfaithful)


@pytest.mark.parametrize(("finite", "telling"), [(0, False), (31, False), (32, True), (64, True)])
def test_what_is_not_finite_tells_little(finite: int, telling: bool) -> None:
    reference = torch.cat([torch.ones(finite), torch.full((64 - finite,), math.nan)])
    assert compare(reference.clone(), reference) == Faithful(0.0, telling)
    assert compare((torch.ones(4), reference), (torch.ones(4), reference)) == Faithful(0.0, telling)


@pytest.mark.parametrize("result", [torch.zeros(3), torch.zeros(4, dtype=torch.float16)])
def test_another_shape_or_dtype_is_unfaithful(result: torch.Tensor) -> None:
    assert isinstance(compare(result, torch.zeros(4)), Unfaithful)


def test_each_of_several_outputs_must_be_right() -> None:
    reference = torch.randn(3, 64).unbind()
    close = tuple(tensor * factor for tensor, factor in zip(reference, (1, 1 + 1e-4, 1), strict=True))
    verdict = compare(close, reference)
    assert isinstance(verdict, Faithful)
    assert verdict.rel_l2 == pytest.approx(1e-4, rel=0.01)
    assert isinstance(compare((*reference[:2], 1.1 * reference[2]), reference), Unfaithful)
    missing = compare(reference[:2], reference)
    assert isinstance(missing, Unfaithful)
    assert missing.reason == OtherResult("2 tensors", "3 tensors")


def test_relative_l2_of_zeros() -> None:
    assert relative_l2(torch.zeros(4), torch.zeros(4)) == 0.0


class _Largest(TorchDispatchMode):
    """The most elements that a new float64 tensor had."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **kwargs or {})
        if isinstance(made, torch.Tensor) and made.dtype == torch.float64:
            self.elements = max(self.elements, made.numel())
        return made


@pytest.mark.parametrize("turned", [False, True])
def test_relative_l2_of_much_takes_little_memory(turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faithfulness, "_PIECE", 1000)
    a, b = torch.randn(70, 99), torch.randn(70, 99)
    a, b = (a.T, b.T) if turned else (a, b)
    wanted = float(torch.linalg.vector_norm(a.double() - b.double()) / torch.linalg.vector_norm(b.double()))
    with _Largest() as largest:
        found = relative_l2(a, b)
    assert math.isclose(found, wanted, rel_tol=1e-12)
    assert largest.elements == 1000


def quantised(exact: torch.Tensor, seed: int) -> torch.Tensor:
    """A tensor in steps, as of a quantiser whose input has other last bits each time."""
    noise = 1e-3 * torch.randn(exact.shape, generator=torch.Generator().manual_seed(seed))
    return ((exact + noise) * 8).round() / 8


def test_a_quantised_result_is_right_when_it_is_as_near_to_the_exact_one_as_eager() -> None:
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    eager, graph = quantised(exact, 1), quantised(exact, 2)
    assert isinstance(compare(graph, eager), Unfaithful), "as floats they are far from each other"
    assert isinstance(compare_quantised(graph, eager, exact), Faithful)


def test_a_part_that_was_quantised_alike_says_little_of_the_whole() -> None:
    exact = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    eager, graph = quantised(exact, 1), quantised(exact, 2)
    part = compare_quantised(eager[:64], eager[:64], exact[:64])
    assert isinstance(part, Faithful) and part.rel_l2 == 0 < part.eagers[0]
    assert relative_l2(graph, eager) > faithfulness.BOUNDS[torch.float32]
    assert isinstance(compare(eager + 0.9 * part.eagers[0] * eager, eager, part), Faithful)
    assert isinstance(compare(eager + 1.1 * part.eagers[0] * eager, eager, part), Unfaithful)


@pytest.mark.parametrize("wrong", [1.05, 0.9, -1.0])
def test_a_wrong_scale_is_further_from_the_exact_result_than_eager(wrong: float) -> None:
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    eager = quantised(exact, 1)
    verdict = compare_quantised(eager * wrong, eager, exact)
    assert isinstance(verdict, Unfaithful) and isinstance(verdict.reason, TooFarFromExact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_where_eager_is_exact_a_quantised_graph_may_round_once(dtype: torch.dtype) -> None:
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    one_off = torch.nextafter(exact, torch.full_like(exact, 9.0))
    assert isinstance(compare_quantised(one_off, exact, exact.float()), Faithful)
    assert isinstance(compare_quantised(exact * 1.03, exact, exact.float()), Unfaithful)


def test_an_exact_result_that_tells_nothing_leaves_eager_to_judge_by() -> None:
    eager = torch.randn(64)
    assert isinstance(compare_quantised(eager * 1.5, eager, torch.full_like(eager, math.inf)), Unfaithful)
    assert isinstance(compare_quantised(eager, eager, torch.full_like(eager, math.inf)), Faithful)
    assert isinstance(compare_quantised(eager, eager, eager[:3]), Faithful)
