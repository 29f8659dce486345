"""A text model's call at other lengths: of its tokens, and of those before them, whose keys and values it is given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .other_sizes import Arguments, NewSizes

_CACHE = 4  # dimensions of keys and of values: batch, heads, tokens, channels
_MANY = 50  # tokens, from which on further calls have about as many: code may ask whether there are more than so many


@dataclass(frozen=True)
class _Lengths:
    """The lengths of a call, and those that it is to have."""

    batch: int
    tokens: int
    new_batch: int
    new_tokens: int
    more: int

    def near(self, count: int) -> int:
        """Another number of tokens, so that some calls have more and some fewer."""
        return count - self.more if self.more % 2 and count > self.more else count + self.more

    def of(self, value: Any) -> Any:
        """An argument at the new lengths."""
        if not isinstance(value, torch.Tensor) or value.ndim < 2:
            return value
        first = 0 if value.shape == (self.tokens, self.tokens) else 1
        last = value.ndim - (value.ndim == 3 and value.is_floating_point())  # channels
        for dim in range(first, last):
            value = _at(value, dim, self.tokens, self.new_tokens)
        return value if first == 0 else _at(value, 0, self.batch, self.new_batch)

    def cache(self, keys: torch.Tensor, values: torch.Tensor, count: int) -> Any:
        """Keys and values of another number of tokens, with room for more where the call's have some."""
        was, count = count, self.near(count) if count else count
        if values.ndim != _CACHE or keys.shape[2] < was:  # a state, or those of the last tokens alone
            return keys, values, count
        shape = (*keys.shape[:2], count + (self.new_tokens + self.more if keys.shape[2] > was else 0))
        return keys.new_zeros((*shape, keys.shape[3])), values.new_zeros((*shape, values.shape[3])), count


def _at(value: torch.Tensor, dim: int, was: int, now: int) -> torch.Tensor:
    if value.shape[dim] != was or was == now:
        return value
    return value.index_select(dim, torch.arange(now, device=value.device) % was)


def ways(named: Mapping[str, Any], sizes: NewSizes) -> list[Callable[[], Arguments]]:
    """Return the ways to have a call at other lengths; none, if it has no tokens.

    The second way leaves out what may be bound to the tokens of the call, such as where among them images are; the
    third one whatever else is a tensor.
    """
    caches = [name for name, value in named.items() if _is_list_of_caches(value)]
    main = next((one for one in named.values() if isinstance(one, torch.Tensor) and one.ndim == 3), None)
    if main is None or len(caches) > 1:
        return []
    batch, tokens, _ = main.shape
    new = _Lengths(batch, tokens, batch if caches else sizes.batch, 1, sizes.tokens)
    if tokens > 1:
        new = _Lengths(batch, tokens, new.new_batch, new.near(tokens) if tokens > _MANY else sizes.tokens, sizes.tokens)
    some = {name: value if name in caches or _goes_without(value) else None for name, value in named.items()}
    fewest = {
        name: None if isinstance(value, torch.Tensor) and value is not main else value for name, value in some.items()
    }
    return [functools.partial(_resized, kept, caches, new) for kept in (named, some, fewest)]


def _is_list_of_caches(value: Any) -> bool:
    return type(value) in (list, tuple) and value != type(value)() and all(map(_is_cache, value))


def _is_cache(value: Any) -> bool:
    if type(value) is not tuple or len(value) != 3 or type(value[2]) is not int:
        return value == ()  # of the first call, or of a block that attends to another one's
    return all(isinstance(one, torch.Tensor) and one.ndim > 2 for one in value[:2])


def _goes_without(value: Any) -> bool:
    """Whether a value means the same for other tokens: the tokens themselves, their positions, settings."""
    return not isinstance(value, list | tuple) and not (isinstance(value, torch.Tensor) and value.dtype is torch.bool)


def _resized(named: Mapping[str, Any], caches: list[str], new: _Lengths) -> Arguments:
    made = {name: new.of(value) for name, value in named.items() if name not in caches}
    return made | {name: [new.cache(*one) if one else () for one in named[name]] for name in caches}
