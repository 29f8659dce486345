"""The function that turns a reason into its sentence."""

from __future__ import annotations

import functools

from ..reasons import Reason


@functools.singledispatch
def text(reason: Reason) -> str:
    """Describe a reason in one clause without a full stop, as it follows "eager: " on a node.

    Args:
        reason: any reason.

    Raises:
        TypeError: no sentence is registered for its class.
    """
    raise TypeError(f"no message for {type(reason).__name__}")
