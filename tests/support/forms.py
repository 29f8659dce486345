"""Calls of a form, told as the runtime tells them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onegraph.signature.call_tree import Form, Leaf
from onegraph.signature.matching import of_form, structured


def matcher(form: Form) -> Callable[[Any], list[Leaf] | None]:
    """A function that gives the leaves of a value of this form, and None for any other."""
    leaves_of, fits = structured(form), of_form(form)

    def matched(value: Any) -> list[Leaf] | None:
        leaves = leaves_of(value)
        return leaves if leaves is not None and fits(leaves) else None

    return matched
