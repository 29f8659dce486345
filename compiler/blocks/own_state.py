"""What a block keeps in its own attributes: a graph writes nothing there, so a block that does is not captured."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

_WEIGHTS = ("_parameters", "_modules")  # which export has other tensors in, while it captures
_DEEPEST = 3  # containers in each other that are looked into


def own_writes(block: torch.nn.Module) -> Callable[[], bool]:
    """Return a function that tells whether something in a block's modules was written since: an attribute, an item of
    a list or a dictionary, a value of a buffer."""
    before = [*_state(block)]

    def written() -> bool:
        now = [*_state(block)]
        return len(now) != len(before) or not all(map(_same, before, now))

    return written


def _same(before: tuple[Any, int], now: tuple[Any, int]) -> bool:
    return operator.is_(before[0], now[0]) and before[1] == now[1]


def _state(block: torch.nn.Module) -> Iterator[tuple[Any, int]]:
    for module in block.modules():
        for name, value in [*vars(module).items()]:
            if name not in _WEIGHTS:
                yield from _items(value, _DEEPEST)


def _items(value: Any, depth: int) -> Iterator[tuple[Any, int]]:
    """A value, and the values in it: each with how often it was written, where it is a tensor."""
    yield value, value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0
    if depth and isinstance(value, list | tuple | dict | set):
        for item in [*value.values()] if isinstance(value, dict) else [*value]:
            yield from _items(item, depth - 1)
