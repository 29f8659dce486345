"""The text of a module's attribute where that is configuration: what two equal modules have in common."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch

_SCALARS = (bool, int, float, complex, str, bytes, range, type(None), torch.dtype)
_CONTAINERS = (list, dict, set, SimpleNamespace)


def describe(value: Any) -> str | None:
    """Return a stable text for a plain value, or None for what is no configuration (modules, tensors, caches).

    An empty dictionary or set is a cache that nobody has filled yet, as far as anybody can tell.

    >>> describe({"heads": 8, "kernel": (3, 3)})
    "{'heads':8,'kernel':[3,3]}"
    >>> describe([torch.zeros(1)]) is None
    True
    """
    if is_empty(value):
        return None
    try:
        return _text(value)
    except RecursionError:  # it contains itself
        return None


def is_empty(value: Any) -> bool:
    """Tell whether a value is an empty dictionary or set."""
    return type(value) in (dict, set) and not value


def _text(value: Any) -> str | None:
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}"
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, tuple | list | torch.Size):
        return _whole("[{}]", map(_text, value))
    if type(value) in (set, frozenset):
        return _whole("{{{}}}", map(_text, value), is_sorted=True)
    if type(value) is dict:  # a subclass may compute what it answers
        return _whole("{{{}}}", (_pair(*entry) for entry in value.items()))
    if type(value) is SimpleNamespace or _is_record(value):
        return _whole(f"{_name(type(value))}({{}})", (_pair(*entry) for entry in vars(value).items()))
    if type(value) is functools.partial:
        return _whole("partial({})", map(_text, (value.func, value.args, value.keywords)))
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return f"{value.dtype}({value.item()!r})"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return _name(value)
    return None


def may_change_in_place(value: Any) -> bool:
    """Tell whether a plain value may change and stay the same object. It equals a copy until it does."""
    return type(value) in _CONTAINERS or (
        _is_record(value) and inspect.getattr_static(type(value), "__eq__") is not object.__eq__
    )


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _pair(key: Any, value: Any) -> str | None:
    texts = _text(key), _text(value)
    return None if None in texts else f"{texts[0]}:{texts[1]}"


def _whole(form: str, texts: Iterable[str | None], *, is_sorted: bool = False) -> str | None:
    """A text of all parts, or None where one of them is no configuration."""
    entries = list(texts)
    plain = [text for text in entries if text is not None]
    if len(plain) != len(entries):
        return None
    return form.format(",".join(sorted(plain) if is_sorted else plain))
