"""Reasons as the sentences that users read: the only place that turns one into the other."""

from __future__ import annotations

import functools

from .reasons import Reason


@functools.singledispatch
def text(reason: Reason) -> str:
    """Describe a reason in one clause without a full stop, as it follows "eager: " on a node.

    Args:
        reason: any reason.

    Raises:
        TypeError: no sentence is registered for its class.
    """
    raise TypeError(f"no message for {type(reason).__name__}")


# A call's inputs against a graph's shape range -----------------------------------------------------------------

# The store -----------------------------------------------------------------------------------------------------

# Backends and compiling ----------------------------------------------------------------------------------------

# Weights, functions and first use ------------------------------------------------------------------------------

# The workflow --------------------------------------------------------------------------------------------------
