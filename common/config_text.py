"""The text of a module's attribute where that is configuration: what two equal modules have in common."""

from __future__ import annotations

import array
import dataclasses
import enum
import functools
import hashlib
import inspect
import operator
import sys
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from types import FunctionType, MappingProxyType, MethodType, SimpleNamespace
from typing import Any

import torch

from .code_digest import bytecode_digest

_SCALARS = (bool, int, float, complex, str, bytes, range, type(None), torch.dtype)
_CONTAINERS = (list, dict, set, SimpleNamespace)
_COLLECTIONS = (deque, OrderedDict, defaultdict, Counter, ChainMap, MappingProxyType)  # besides
_NUMBERS = (array.array, bytearray, Decimal, Fraction)
_DEPTH = 3  # objects within each other that are looked into
_MADE_OF_MORE = (torch.Tensor, torch.nn.Module, torch.Generator, list, tuple, dict, set, frozenset, BaseException)


def describe(value: Any) -> str | None:
    """Return a stable text for a plain value, or None for what is no configuration (modules, tensors, caches).

    An empty dictionary or set is a cache that nobody has filled yet, as far as anybody can tell. An object is its class
    and its fields, of those that are no configuration what they are.

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
    """Tell whether a value is an empty dictionary or set, or one of their like."""
    return type(value) in (dict, set, *_COLLECTIONS) and not value


def _text(value: Any, depth: int = 0, inside: bool = False) -> str | None:
    """`depth`: how many objects it is within. `inside`: of a container, which is a cache if its objects hold more."""
    below = functools.partial(_text, depth=depth, inside=True)
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}"
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, tuple | list | torch.Size):
        return _whole("[{}]", map(below, value))
    if type(value) in (set, frozenset):
        return _whole("{{{}}}", map(below, value), is_sorted=True)
    if type(value) is dict:  # a subclass may compute what it answers
        return _whole("{{{}}}", (_pair(below(key), below(one)) for key, one in value.items()))
    if type(value) is SimpleNamespace or _is_record(value):
        fields = (_pair(below(key), below(one)) for key, one in vars(value).items())
        return _whole(f"{_name(type(value))}({{}})", fields)
    if type(value) is functools.partial:
        return _whole("partial({})", (_text(value.func, depth), below(value.args), below(value.keywords)))
    if type(value) in _NUMBERS:
        return repr(value)
    if type(value) in _COLLECTIONS:
        return _collection(value, below)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return f"{value.dtype}({value.item()!r})"
    if _is_array(value):
        return f"{value.dtype.str}{value.shape}({hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()})"
    if isinstance(value, MethodType) and is_object(value.__self__):
        return f"{_name(value)} of {_object(value.__self__, depth, inside=False)}"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return _name(value) if _is_what_its_name_says(value) else f"another {_name(value)} {bytecode_digest(value)}"
    return _object(value, depth, inside) if is_object(value) else None


def _collection(value: Any, below: Callable[[Any], str | None]) -> str | None:
    about = [below(getattr(value, name)) for name in ("maxlen", "default_factory") if hasattr(value, name)]
    if isinstance(value, Mapping) and type(value) is not ChainMap:
        texts = [_pair(below(key), below(one)) for key, one in list(value.items())]
    else:
        texts = [*map(below, list(value.maps if type(value) is ChainMap else value))]  # which another thread may change
    return _whole(f"{_name(type(value))}({{}})", [*about, *texts])


def _is_array(value: Any) -> bool:
    """Tell whether a value is an array of numpy's that holds numbers alone; numpy need not be there."""
    cls = type(value)
    return (cls.__module__, cls.__qualname__) == ("numpy", "ndarray") and not value.dtype.hasobject


def _is_what_its_name_says(value: Any) -> bool:
    """Tell whether a function is the one of its name, where that has one: wrappers take the names of what they wrap."""
    if not isinstance(value, FunctionType):
        return True
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = inspect.getattr_static(found, part, None)
    return getattr(found, "__func__", found) is value


def is_object(value: Any) -> bool:
    """Tell whether a value is an object of a class that is none of Python's own, torch's or numpy's."""
    cls = type(value)
    if isinstance(value, (type, enum.Enum, *_MADE_OF_MORE)) or _is_record(value):
        return False
    package = cls.__module__.partition(".")[0]
    return package not in ("torch", "numpy") and package not in sys.stdlib_module_names


def holds_object(value: Any) -> bool:
    """Tell whether a plain value is such an object, or one of Python's and numpy's that is not simply compared with a
    copy, or holds one: then it may equal what it was, and be another."""
    try:
        return _holds_object(value)
    except RecursionError:  # it contains itself
        return False


def _holds_object(value: Any) -> bool:
    if isinstance(value, tuple | list | set | frozenset):
        return any(map(_holds_object, value))
    if type(value) is dict:
        return any(map(_holds_object, value.values()))
    if type(value) is SimpleNamespace or _is_record(value):
        return any(map(_holds_object, vars(value).values()))
    if type(value) is functools.partial:
        return any(map(_holds_object, (value.func, value.args, value.keywords)))
    if type(value) in (array.array, bytearray, *_COLLECTIONS) or _is_array(value):
        return True
    return is_object(value.__self__ if isinstance(value, MethodType) else value)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(value, "__dict__", {}).items())
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            full = f"_{cls.__name__.lstrip('_')}{name}" if is_private else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, full):
                yield full, getattr(value, full)
        for name, one in list(vars(cls).items()):  # what all objects of the class share
            if isinstance(one, (*_SCALARS, list, dict, set, tuple)) and not name.startswith("__"):
                yield f"{cls.__qualname__}.{name}", one


def _field_text(value: Any, depth: int) -> str | None:
    try:
        return None if is_empty(value) else _text(value, depth)
    except RecursionError:  # it contains itself
        return None


def _object(value: Any, depth: int, inside: bool) -> str | None:
    """The text of an object. A field that is, or may become, no configuration has that of its class."""
    if depth >= _DEPTH:
        return _name(type(value))
    found = [(name, type(one), _field_text(one, depth + 1)) for name, one in _fields(value)]
    if inside and any(text is None for _, _, text in found):
        return None
    texts = (f"{name}={text or _name(cls)}" for name, cls, text in sorted(found, key=operator.itemgetter(0)))
    return f"{_name(type(value))}({','.join(texts)})"


def may_change_in_place(value: Any) -> bool:
    """Tell whether a plain value may change and stay the same object. It equals a copy until it does."""
    if isinstance(value, tuple):
        return any(map(may_change_in_place, value))
    return type(value) in _CONTAINERS or (
        _is_record(value) and inspect.getattr_static(type(value), "__eq__") is not object.__eq__
    )


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _pair(key: str | None, value: str | None) -> str | None:
    return None if None in (key, value) else f"{key}:{value}"


def _whole(form: str, texts: Iterable[str | None], *, is_sorted: bool = False) -> str | None:
    """A text of all parts, or None where one of them is no configuration."""
    entries = list(texts)
    plain = [text for text in entries if text is not None]
    if len(plain) != len(entries):
        return None
    return form.format(",".join(sorted(plain) if is_sorted else plain))
