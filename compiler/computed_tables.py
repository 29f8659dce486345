"""Tables of numbers that stand in a library's code, computed by a graph: it has no tensors but weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class ComputedTables(TorchFunctionMode):
    """`torch.tensor` of numbers written in the code gives what a graph computes."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func is not torch.tensor or not (args and isinstance(args[0], list | tuple)):
            return func(*args, **options)
        values = args[0]
        steps = {after - before for before, after in itertools.pairwise(values)}
        if len(steps) == 1 and all(isinstance(value, int) for value in values):  # how far bits are shifted
            step = steps.pop()
            return torch.arange(values[0], values[-1] + step, step, **options)
        return torch.stack([torch.full((), value, **options) for value in values])
