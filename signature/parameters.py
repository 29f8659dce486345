"""A block's arguments by name, however its caller gave them: patches call blocks in another way than models do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .call_tree import OPTIONS
from .modulation import GIVEN, giving
from .views import VIEWED, view_of

_POSITIONAL, _NAMED = "*", "**"  # names of what a function with such parameters is given besides
_METHOD = "()"  # the name of the method that is called, where it is not `forward`


class Parameters:
    """The parameters of a block's method, by which positional and named arguments mean the same.

    Args:
        method: the function of the class, which takes the block first.
        name: of it, which is one of the arguments where it is not `forward`: calls of two methods have two forms.
    """

    def __init__(self, method: Callable[..., Any], name: str = "forward") -> None:
        self._method = {_METHOD: name} if name != "forward" else {}
        self._signature = inspect.signature(method)
        first, *rest = self._signature.parameters.values()
        self._first = first.name
        self._defaults = {one.name: one.default for one in rest}
        self._names = tuple(self._defaults)
        self._open = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in rest)
        self._kinds = {one.name: one.kind for one in rest}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return every argument by its parameter's name, in the parameters' order, defaults included.

        What a function of `*args` or `**kwargs` is given besides is a tuple named `*` and a dictionary named `**`.

        Raises:
            TypeError: the function cannot be called so.
        """
        if not self._open:
            first = dict(zip(self._names, args, strict=False)) if args else {}
            named = {**self._defaults, **first, **kwargs}
            if len(named) != len(self._names) or len(args) > len(self._names) or not first.keys().isdisjoint(kwargs):
                raise TypeError("other arguments than the function has")
            return {**self._method, **named} if self._method else named
        bound = self._signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        named = {**self._method}
        for name, value in bound.arguments.items():
            if name != self._first:
                kind = self._kinds[name]
                named[_POSITIONAL if kind is inspect.Parameter.VAR_POSITIONAL else
                      _NAMED if kind is inspect.Parameter.VAR_KEYWORD else name] = value  # fmt: skip
        return named


@functools.cache
def parameters_of(cls: Any, method: str = "forward") -> Parameters:
    """Return the parameters of a class's method."""
    return Parameters(getattr(cls, method), method)


def method_of(cls: Any, named: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function of a block's class that a call is one of; it takes the block first."""
    method: Callable[..., Any] = getattr(cls, named.get(_METHOD, "forward"))
    return method


def as_call(named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what `Parameters.bind` made as positional and named arguments of such a call.

    Parameters before `*args` can be given by position only.
    """
    plain = {name: value for name, value in named.items() if name not in (_POSITIONAL, _NAMED, _METHOD, GIVEN)}
    more = dict(named.get(_NAMED, {}))
    if _POSITIONAL not in named:
        return (), {**plain, **more}
    before = [name for name in list(named)[: list(named).index(_POSITIONAL)] if name not in (_METHOD, GIVEN)]
    after = {name: value for name, value in plain.items() if name not in before}
    return (*(plain[name] for name in before), *named[_POSITIONAL]), {**after, **more}


def called(block: torch.nn.Module, named: Mapping[str, Any]) -> Any:
    """Call a block with what `Parameters.bind` or a view made, by the method of which it is a call."""
    view = view_of(block) if VIEWED in named else None
    if view is not None:
        return view.call(block, named)
    args, kwargs = as_call(named)
    with giving(block, named):
        return method_of(type(block), named)(block, *args, **kwargs)


def options_of(named: Mapping[str, Any]) -> Any:
    """Return the model's options among arguments by name, also where they come through `**kwargs`; None: no options."""
    options = named.get(OPTIONS)
    return options if options is not None else named.get(_NAMED, {}).get(OPTIONS)
