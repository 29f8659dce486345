"""An edit of a live module, which is undone at its end.

It is a context manager of (module, roles, old). `roles` names submodules by what they are, for each component. `old`
takes what was replaced: a list keeps it alive, as packs do that put it back; where nothing keeps it, an equal copy
is put back.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

Roles = Mapping[str, str]
Edit = Callable[[torch.nn.Module, Roles, "Old"], contextlib.AbstractContextManager[None]]


class Old(Protocol):
    """Where what was replaced goes."""

    def append(self, value: Any, /) -> Any:
        """Keep it alive, or do not."""


class Dropped:
    """Nobody keeps what was replaced."""

    def append(self, value: Any, /) -> None:
        """Let it go."""


class _Undone(contextlib.AbstractContextManager[None]):
    """What a generator does up to its `yield`; the rest is done at the end, whatever happened in between."""

    def __init__(self, module: torch.nn.Module, steps: Iterator[None]) -> None:
        self._orders = [(name, [*child._parameters]) for name, child in module.named_modules()]
        self._module = module
        self._steps = steps

    def __enter__(self) -> None:
        next(self._steps)

    def __exit__(self, *raised: object) -> None:
        with torch.inference_mode():
            assert next(self._steps, True)
        for name, order in self._orders:  # which is part of the architecture
            table = self._module.get_submodule(name)._parameters
            assert {*table} == {*order}
            if [*table] != order:
                values = [table.pop(key) for key in order]
                table.update(zip(order, values, strict=True))


def undoing(function: Callable[[torch.nn.Module, Roles, Old], Iterator[None]]) -> Edit:
    """Make an edit of a generator function that changes something, yields, and puts it back."""

    @functools.wraps(function)
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> contextlib.AbstractContextManager[None]:
        return _Undone(module, function(module, roles, old))

    return edit


def halved(original: Callable[..., Any]) -> Callable[..., Any]:
    """The function with half its result."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * 0.5

    return replacement
