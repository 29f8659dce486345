"""What a family declares of its calls: which ones are admitted, and the reason of any other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import toy

from onegraph.common.reasons import InputLength, NotAMultiple, OtherSize
from onegraph.signature.declared import Dim, ShapeRange, TensorSpec


def calls(batch: int = 2, height: int = 8, width: int = 8, context: int = 5, **changes: Any) -> list[torch.Tensor]:
    x = {"size": (batch, 4, height, width), "dtype": torch.float32, **changes}
    return [torch.empty(**x), torch.empty(batch, context, 8)]


def test_a_call_in_range_is_admitted_with_its_sizes() -> None:
    call = calls(3, 9, 31, 64)
    assert toy.shapes().refusal(call, toy.CPU) is None
    assert toy.shapes().sizes(call) == {"batch": 3, "height": 9, "width": 31, "context": 64}
    assert toy.shapes().shapes(toy.shapes().sizes(call)) == [tuple(one.shape) for one in call]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (calls(batch=5), "batch 5 is outside 1..4"),
        (calls(height=33), "height 33 is outside 4..32"),
        (calls(context=65), "context 65 is outside 1..64"),
        (calls(dtype=torch.float64), "x is float64, the graph takes float32"),
        (calls(height=3), "height 3 is outside 4..32"),
        (calls(size=(2, 3, 8, 8)), "3 should be 4"),
        (calls(dtype=torch.float16), "x is float16, the graph takes float32"),
        (calls(device="meta"), "x is on meta, the graph is for cpu"),
        (calls(size=(2, 9, 8, 8)), "9 should be 4"),
        (calls(size=(2, 4, 8)), "3 dimensions instead of 4"),
        (calls(size=(3, 4, 8, 8)), "another input has 3"),
        (calls()[:1], "1 inputs instead of 2"),
    ],
)
def test_anything_else_is_refused_with_the_reason(call: list[torch.Tensor], reason: str) -> None:
    refusal = toy.shapes().refusal(call, toy.CPU)
    assert refusal is not None and reason in refusal.text


def test_multiples_are_kept() -> None:
    refusal = toy.shapes(multiple=4).refusal(calls(height=10), toy.CPU)
    assert refusal == NotAMultiple("height", 10, 4)
    assert refusal.text == "height 10 is not a multiple of 4"


def test_an_exact_dimension_names_its_compiled_size() -> None:
    refusal = Dim("height", 8, 8).refusal(16)
    assert refusal == OtherSize("height", 16, 8)
    assert refusal.text == "height 16 is not the 8 it was compiled for"


def steered(**sizes: tuple[int, ...]) -> list[torch.Tensor]:
    shapes = {"x": (2, 4, 9, 8), "hint": (2, 3, 72, 64), "half": (2, 8, 5, 4), **sizes}
    return [torch.empty(shape) for shape in shapes.values()]


STEERED = ShapeRange(
    (Dim("batch", 1, 4), Dim("height", 4, 32), Dim("width", 4, 32)),
    (
        TensorSpec("x", ("batch", 4, "height", "width"), "float32"),
        TensorSpec("hint", ("batch", 3, "height*8", "width*8"), "float32"),
        TensorSpec("half", ("batch", 8, "height/2", "width/2"), "float32"),
    ),
)


def test_a_size_may_follow_from_another_inputs() -> None:
    assert STEERED.refusal(steered(), toy.CPU) is None
    assert STEERED.sizes(steered()) == {"batch": 2, "height": 9, "width": 8}
    assert ShapeRange.from_json(STEERED.to_json()) == STEERED
    for wrong, size, wanted in (({"half": (2, 8, 4, 4)}, 4, 5), ({"hint": (2, 3, 72, 63)}, 63, 64)):
        (name, shape), *_ = wrong.items()
        assert STEERED.refusal(steered(**wrong), toy.CPU) == InputLength(name, shape, size, wanted)


def test_a_size_cannot_follow_from_nothing() -> None:
    with pytest.raises(ValueError, match="differ"):
        ShapeRange((Dim("height", 4, 8),), (TensorSpec("x", ("height/2",), "float32"),))


@pytest.mark.parametrize("bad", [(0, 4, 1), (5, 4, 1), (4, 8, 3), (4, 9, 4), (4, 8, 0)])
def test_an_impossible_range_cannot_be_made(bad: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="height"):
        Dim("height", *bad)


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 40), st.integers(1, 80))
def test_admission_is_exactly_the_range(batch: int, height: int, width: int, context: int) -> None:
    spec = toy.shapes(multiple=4)
    inside = batch <= 4 and all(4 <= n <= 32 and n % 4 == 0 for n in (height, width)) and context <= 64
    call = calls(batch, height, width, context)
    assert (spec.refusal(call, toy.CPU) is None) == inside == spec.rules.fits([one.shape for one in call])


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 5))
def test_a_range_survives_json(low: int, more: int, multiple: int) -> None:
    dim = Dim("height", low * multiple, (low + more) * multiple, multiple)
    spec = ShapeRange((dim,), (TensorSpec("x", (4, "height"), "float16"),))
    assert ShapeRange.from_json(spec.to_json()) == spec
