"""What a block keeps outside of its call: a graph writes nothing there, so a block that does is not captured."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_WEIGHTS = ("_parameters", "_modules")  # which export has other tensors in, while it captures
_DEEPEST = 3  # containers in each other that are looked into


def own_writes(block: torch.nn.Module, packages: Sequence[str] = ()) -> Callable[[], str]:
    """Return a function that says what was written since, as the end of a sentence; empty when nothing was: attributes
    of a block's modules, values of its buffers, global names of the packages' Python modules, attributes of their
    classes, and items of the containers there.

    Args:
        packages: the model's.
    """
    # Those that the block imports itself are not written to by it.
    modules = [one for name, one in [*sys.modules.items()] if name.partition(".")[0] in packages and one is not None]
    states = {
        "attributes of its own": lambda: _attributes(block),
        "global names or classes of its Python modules": lambda: _globals(modules),
    }
    before = {what: [*state()] for what, state in states.items()}

    def written() -> str:
        return next((what for what, state in states.items() if not _same(before[what], [*state()])), "")

    return written


def _same(before: list[tuple[Any, int]], now: list[tuple[Any, int]]) -> bool:
    return len(now) == len(before) and all(
        operator.is_(old, new) and version == written
        for (old, version), (new, written) in zip(before, now, strict=True)
    )


def _attributes(block: torch.nn.Module) -> Iterator[tuple[Any, int]]:
    for module in block.modules():
        for name, value in [*vars(module).items()]:
            if name not in _WEIGHTS:
                yield from _items(value, _DEEPEST)


def _globals(modules: Sequence[ModuleType]) -> Iterator[tuple[Any, int]]:
    for module in modules:
        for value in _values(module):
            yield from _items(value, _DEEPEST)
            if isinstance(value, type) and value.__module__ == module.__name__:
                for its_value in _values(value):
                    yield from _items(its_value, _DEEPEST)


def _values(named: ModuleType | type) -> list[Any]:
    """What names refer to, but for Python's own, `__warningregistry__` among them, and modules, which imports add."""
    return [
        value
        for name, value in [*vars(named).items()]
        if not name.startswith("__") and not isinstance(value, ModuleType)
    ]


def _items(value: Any, depth: int) -> Iterator[tuple[Any, int]]:
    """A value, and the values in it: each with how often it was written, where it is a tensor."""
    yield value, value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0
    if depth and isinstance(value, list | tuple | dict | set | SimpleNamespace):
        whole = vars(value) if isinstance(value, SimpleNamespace) else value
        for item in [*whole.values()] if isinstance(whole, dict) else [*whole]:
            yield from _items(item, depth - 1)
