"""Attributes of other people's modules and classes, replaced for a while."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """Replace an attribute of a module, a class or an object while this lasts. In this process only.

    A static method of a class is restored as one.

    >>> import types
    >>> module = types.SimpleNamespace(threads=4)
    >>> with replaced(module, "threads", 1):
    ...     module.threads
    1
    >>> module.threads
    4
    """
    before = inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, before)
