"""Functions of comfy-kitchen that no capture can follow, as operations: a graph calls the same ones as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NAMESPACE = "onegraph"


def operation(name: str, function: Callable[..., torch.Tensor], shapes: Callable[..., torch.Tensor]) -> Any:
    """Make an operation of a function, unless another copy of the pack has made it.

    Args:
        function: annotated, as its arguments' types are the operation's.
        shapes: takes the same arguments, and returns a tensor like the result whose values do not matter.
    """
    namespace = getattr(torch.ops, _NAMESPACE)
    if not hasattr(namespace, name):
        torch.library.custom_op(f"{_NAMESPACE}::{name}", function, mutates_args=()).register_fake(shapes)
    return getattr(namespace, name)
