"""Strides of index expressions without sympy's `simplify`, a third of a compile for a CPU with symbolic sizes.

Inductor asks how far an address moves when a loop variable goes on by one: it simplifies the index and the difference
of two of them, and looks for the constants 0 and 1. `sympy.expand` finds the same constants, for what is left is a
polynomial in symbols and in opaque terms (`FloorDiv`, `ModularIndexing`), whose expanded form is unique.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch

from ...common.errors import LoadError
from ...common.log import logger
from ...common.replaced import replaced
from ...common.torch_private import require

log = logger("compiler")

# Where an expression is evaluated, by the positions of its symbols in turn: scattered numbers, and numbers one below a
# multiple of every common divisor beside small ones, where a quotient that grows does so. No two symbols have the same:
# a difference of two sizes may be a divisor.
_STEP = 64 * 720720
_POINTS = (
    (999983, 104729, 1299709, 15485863, 611953),
    (7919, 27644437, 224737, 49979687, 350377),
    (_STEP - 1,),
    (_STEP - 1, 4, 8 * _STEP - 1, 2, 3),
    (4, _STEP - 1, 2, 16 * _STEP - 1, 8),
)


def is_constant(expression: Any) -> bool:
    """Tell whether an expression may be the same number whatever its symbols are; False only where it is not.

    Nobody knows where it divides by zero.
    """
    import sympy

    symbols = sorted(expression.free_symbols, key=str)
    values = set()
    for point in _POINTS:
        numbers = {
            symbol: sympy.Integer(point[n % len(point)] + n // len(point) * 32 * _STEP)
            for n, symbol in enumerate(symbols)
        }
        try:
            values.add(expression.xreplace(numbers))
        except ZeroDivisionError:
            return True
        if len(values) > 1:
            return False
    return True


def simplified(expression: Any) -> Any:
    """Return what Inductor makes of an index or of a difference of two: its expanded form.

    Where that is no number and yet the same at several points, which no polynomial is, sympy is to look closer. It
    need not where the reason is that a quotient and a remainder make up a whole: sympy does not know torch's.
    """
    import sympy

    expanded = sympy.expand(expression)
    if expanded.is_number or not is_constant(expanded):
        return expanded
    if sympy.expand(_without_remainders(expanded)).is_number:
        return expanded
    return sympy.simplify(expression)


def _without_remainders(expression: Any) -> Any:
    """The expression with each remainder of a division as what is left of the number without the quotient."""
    functions = require("torch.utils._sympy.functions")
    quotient, remainder = functions.FloorDiv, functions.ModularIndexing

    def whole(base: Any, divisor: Any, modulus: Any) -> Any:
        return quotient(base, divisor) - modulus * quotient(base, divisor * modulus)

    return expression.replace(remainder, whole)


class _Sympy(types.ModuleType):
    """sympy with another `simplify`, for one module of Inductor."""

    def __getattr__(self, name: str) -> Any:
        import sympy

        return simplified if name == "simplify" else getattr(sympy, name)


@contextlib.contextmanager
def quick_strides() -> Iterator[None]:
    """Have Inductor expand where it would simplify while this lasts. In this process only.

    Where this torch keeps those functions elsewhere, it compiles as ever.
    """
    module = _module()
    if module is None:
        yield
        return
    with replaced(module, "sympy", _Sympy("sympy")):
        yield


def _module() -> Any:
    """The module whose functions simplify, or None."""
    for name in ("sizevars", "codegen.cpp"):  # of torch 2.14 and of 2.11
        with contextlib.suppress(LoadError):
            for used in ("sympy.simplify", "simplify_index_in_vec_range", "stride_at"):
                require(f"torch._inductor.{name}.{used}")
            for used in ("FloorDiv", "ModularIndexing"):
                require(f"torch.utils._sympy.functions.{used}")
            return require(f"torch._inductor.{name}")
    log.warning("strides are simplified as torch does it: torch %s has them elsewhere", torch.__version__)
    return None
