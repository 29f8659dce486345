"""Strides without sympy's `simplify`: the same constants, the same code."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from torch._inductor import sizevars
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from onegraph.backends.inductor import algebra

X, S, T = (sympy.Symbol(name, integer=True, positive=True) for name in "xst")
CONSTANT = [
    (X + 1) * S - X * S - S + 1,
    FloorDiv(X, 4) * S - S * FloorDiv(X, 4) + 7,
    (S + T) ** 2 - S**2 - 2 * S * T - T**2,
]
OPAQUE = 4 * FloorDiv(X, 4) + ModularIndexing(X, 1, 4) - X  # 0, by an identity that sympy does not know
VARYING = [FloorDiv(X + 1, 4) - FloorDiv(X, 4), FloorDiv(X + 1, S) - FloorDiv(X, S), ModularIndexing(X, 1, 64) - X, S]


@pytest.mark.parametrize("expression", CONSTANT)
def test_constants_are_found(expression: sympy.Expr) -> None:
    assert algebra.simplified(expression).is_number
    assert algebra.simplified(expression) == sympy.simplify(expression)


@pytest.mark.parametrize("expression", [ModularIndexing(X + 1, 1, S - T), FloorDiv(X, S - 2 * T) * (S - T)])
def test_a_difference_of_sizes_may_divide(expression: sympy.Expr) -> None:
    """A prompt without the tokens of its picture, for one."""
    stride = expression.xreplace({X: X + 1}) - expression
    assert algebra.simplified(stride) == sympy.expand(stride)
    assert not algebra.simplified(expression).is_number


@pytest.mark.parametrize("expression", VARYING)
def test_what_varies_is_not_looked_at_twice(expression: sympy.Expr, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not algebra.is_constant(expression)
    monkeypatch.setattr(sympy, "simplify", pytest.fail)
    assert not algebra.simplified(expression).is_number


def test_quotient_and_remainder_stay_as_sympy_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code would be another one, if better, where this were called a constant."""
    assert algebra.is_constant(OPAQUE)
    assert not sympy.simplify(OPAQUE).is_number
    monkeypatch.setattr(sympy, "simplify", pytest.fail)
    assert not algebra.simplified(OPAQUE).is_number


def test_what_expanding_cannot_see_sympy_is_asked_for() -> None:
    quotient = FloorDiv(X, 4)
    for term in (X, quotient):
        hidden = ((term + 3) ** 2 - 1) / (term + 2) - term
        assert not sympy.expand(hidden).is_number
        assert algebra.simplified(hidden) == 4


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), max_size=6))
def test_a_polynomials_stride_is_sympys(terms: list[tuple[int, int, int, int]]) -> None:
    index = sum((c * X**a * S**b * FloorDiv(X, S) ** d for c, a, b, d in terms), sympy.Integer(0))
    difference = index.xreplace({X: X + 1}) - index
    ours, usual = algebra.simplified(difference), sympy.simplify(difference)
    assert ours.is_number == usual.is_number
    if ours.is_number:
        assert ours == usual


def test_inductor_has_its_sympy_back_afterwards() -> None:
    before = sizevars.sympy
    with algebra.quick_strides():
        assert sizevars.sympy.simplify is algebra.simplified
        assert sizevars.sympy.Symbol is sympy.Symbol
    assert sizevars.sympy is before
