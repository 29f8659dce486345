"""Texts for clients: no path of this machine is in them."""

from __future__ import annotations

import functools
from typing import Any

from ...common.errors import without_paths

_shortened = functools.lru_cache(maxsize=4096)(without_paths)


def texts_without_paths(value: Any) -> Any:
    """Reduce each absolute path in the texts of a JSON value, keys too, to its last component.

    Numbers whose keys become equal are added.

    >>> texts_without_paths({"read /home/a/x.json": 1, "read /home/b/x.json": 2})
    {'read x.json': 3}
    """
    if isinstance(value, str):
        return _shortened(value)
    if isinstance(value, list):
        return [texts_without_paths(item) for item in value]
    if not isinstance(value, dict):
        return value
    cleaned: dict[Any, Any] = {}
    for key, item in value.items():
        name, shown = texts_without_paths(key), texts_without_paths(item)
        before = cleaned.get(name)
        numbers = isinstance(before, int | float) and isinstance(shown, int | float)
        cleaned[name] = before + shown if numbers else shown
    return cleaned
