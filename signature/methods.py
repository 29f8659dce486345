"""Objects that a block is given and calls, such as a cache: a graph calls their methods as it calls functions.

What such an object holds is no part of a call's form, and no code in a graph may depend on it: whatever a capture does
with one but call its methods fails.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_FUNCTIONS = (types.FunctionType, staticmethod, classmethod)
_HARMLESS = frozenset({"__init__", "__repr__", "__del__"})  # which no block's code calls


class _Called:
    """An object that has nothing but methods."""

    def __setattr__(self, name: str, value: Any = None) -> None:
        raise TypeError(f"it writes into an object that it is given: {type(self).__qualname__}.{name}")

    __delattr__ = __setattr__


def methods_of(value: Any, packages: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the methods of an object that a graph can call; none where it is no such object.

    Objects that operators work on, such as `cache[key]`, are none, nor are those that have another value than their
    class by one of its names.

    Args:
        packages: of which its classes are.
    """
    cls: Any = type(value)
    if isinstance(value, _Called):
        return _methods(cls.__mro__[2], tuple(packages))
    names = _methods(cls, tuple(packages))
    return () if not names or any(hasattr(cls, name) for name in getattr(value, "__dict__", ())) else names


@functools.cache
def _methods(cls: type, packages: tuple[str, ...]) -> tuple[str, ...]:
    bases = cls.__mro__[:-1]
    if not bases or not all(one.__module__.partition(".")[0] in packages for one in bases):
        return ()
    names = {name for one in bases for name, function in vars(one).items() if isinstance(function, _FUNCTIONS)}
    special = {name for name in names if name.startswith("__") and name.endswith("__")}
    return () if special - _HARMLESS else tuple(sorted(names - special))


def called_object(cls: type, names: Sequence[str], functions: Iterator[Callable[..., Any]]) -> Any:
    """Return an object of a class that has nothing but methods.

    Args:
        functions: what stands in their places, in the order of these names.
    """
    hashable: Any = cls
    called: Any = object.__new__(_called(hashable))
    vars(called).update((name, next(functions)) for name in names)
    return called


@functools.cache
def _called(cls: type) -> type:
    return type(cls.__name__, (_Called, cls), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})
