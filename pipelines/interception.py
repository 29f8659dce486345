"""Taking a module's calls on the instance, in place of the class's own method.

The class stays as it is, and so do other instances. What else sits on the instance keeps its place: hooks of
accelerate and diffusers that come later wrap this, and those that were there before are entered below.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch

from ..common import reasons
from ..common.reasons import Reason
from ..runtime.guards import code_guard
from . import offloading

Serve = Callable[[torch.nn.Module, tuple[Any, ...], Mapping[str, Any], Callable[..., Any]], Any]
_ACCELERATE = "_old_forward"  # where accelerate's hook keeps what it wraps
_STATE = "__getstate__"  # an attribute that copies of an object are made by, whatever its class has
_MOST_BELOW = 200  # objects below a wrapper to look at


class Interception:
    """Stands on a module where its class's method would be found.

    It refers to the module weakly: a module that refers to itself is freed late, and its memory with it.

    Attributes:
        active: whether it takes calls; after `remove` it may be found below somebody else's wrapper.
        refusal: why no graph may stand in for what this stands before, or None.
        serve: how a call is run, given the method as it was.
    """

    def __init__(self, module: torch.nn.Module, method: str, serve: Serve) -> None:
        self._module = weakref.ref(module)
        self._method = method
        self._reference, self._slot = _place(module, method)
        self._before: Any = self._table(module).get(self._slot)
        self.active = True
        self.refusal: Reason | None = None
        # Pipelines ask what a module's method takes. The method itself would refer to the module.
        class_method = getattr(type(module), method)
        self.__name__, self.__doc__ = method, class_method.__doc__
        self.__signature__ = inspect.signature(self._original(module))
        if self._before is not None and not _is_own(module, method, self._before):
            self.refusal = reasons.MethodReplaced(method, code_guard.custom_node(self._before))
        self.serve = serve

    def module(self) -> torch.nn.Module | None:
        """The module on which this stands, unless it is gone."""
        return self._module()

    def bypassed(self) -> Reason | None:
        """Why the module's calls may not come here although they were taken, or None."""
        module = self._module()
        if module is None or not self.active or interception_of(module, self._method) is self:
            return None
        over = vars(module).get(self._method, getattr(type(module), self._method))
        return reasons.MethodReplacedLater(self._method, code_guard.custom_node(over))

    def install(self) -> None:
        """Take the module's calls from now on."""
        module = self._module()
        assert module is not None
        self.active = True
        if interception_of(module, self._method) is not self:
            self._table(module)[self._slot] = self
        if self._before is None and self._reference is None:
            vars(module)[_STATE] = functools.partial(_state_of_a_copy, self._module, self._method)

    def remove(self) -> None:
        """Put back what was there; below somebody else's wrapper, let calls through."""
        module = self._module()
        self.active = False
        if module is None:
            return
        attributes = vars(module)
        attributes.pop(_STATE, None)
        for table, slot in ((self._table(module), self._slot), (attributes, self._method), (attributes, _ACCELERATE)):
            if table.get(slot) is self:
                if self._before is None and slot == self._method:
                    del table[slot]
                else:
                    table[slot] = self._original(module)

    def _table(self, module: torch.nn.Module) -> dict[str, Any]:
        reference = None if self._reference is None else self._reference()
        return vars(module if reference is None else reference)

    def _original(self, module: torch.nn.Module) -> Callable[..., Any]:
        if self._before is not None:
            before: Callable[..., Any] = self._before
            return before
        bound: Callable[..., Any] = getattr(type(module), self._method).__get__(module)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        if module is None:
            raise ReferenceError("the model of this method is gone")
        original = self._original(module)
        if (
            not self.active or torch.compiler.is_compiling()
        ):  # the user's torch.compile or torch.export traces through here
            return original(*args, **kwargs)
        return self.serve(module, args, kwargs, original)

    # A copy of the module is a module of its own, which nobody compiled.

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = self._module()
        copied = memo.get(id(module), module)
        return getattr(type(copied), self._method).__get__(copied)

    def __reduce__(self) -> Any:
        return getattr, (self._module(), self._method)


def _state_of_a_copy(reference: weakref.ref[torch.nn.Module], method: str) -> Any:
    """What a copy of a module, also a shallow one, gets of its attributes: its calls are its own."""
    module = reference()
    assert module is not None  # it is copied
    state = {name: value for name, value in vars(module).items() if name not in (method, _STATE)}
    getstate = getattr(type(module), _STATE, None)
    class_state = None if getstate in (None, getattr(object, _STATE, None)) else getstate(module)
    return state if class_state is None else {name: value for name, value in class_state.items() if name in state}


def _place(module: torch.nn.Module, method: str) -> tuple[weakref.ref[Any] | None, str]:
    """Where the method stands, below hooks of accelerate and of diffusers' group offloading that were there before.

    Returns:
        Whose attribute it is, None for the module's own, and its name.
    """
    if method == "forward" and _ACCELERATE in vars(module):
        return None, _ACCELERATE
    inner = offloading.inner_of(module) if method == "forward" else None
    return (None if inner is None else weakref.ref(inner)), method


def _is_own(module: torch.nn.Module, method: str, value: Any) -> bool:
    function = getattr(value, "__func__", None)
    return function is not None and function is getattr(type(module), method) and value.__self__ is module


def interception_of(module: torch.nn.Module, method: str) -> Interception | None:
    """The interception that stands on a module, below whatever was put over it; None where there is none."""
    reference, slot = _place(module, method)  # accelerate's hook refers to more than it calls
    inner = None if reference is None else reference()
    pending = [vars(module if inner is None else inner).get(slot)]
    seen: set[int] = set()
    while pending and len(seen) < _MOST_BELOW:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Interception) and one.module() is module:
            return one
        if callable(one) and not isinstance(one, torch.nn.Module | type):
            pending += _below(one)
    return None


def _below(wrapper: Any) -> Iterator[Any]:
    """What a function or callable object may call: what it names as wrapped, closes over, or has for an argument."""
    yield from (getattr(wrapper, name, None) for name in ("__wrapped__", "original_forward"))
    if isinstance(wrapper, functools.partial):
        yield from (wrapper.func, *wrapper.args, *wrapper.keywords.values())
    function = getattr(wrapper, "__func__", wrapper)
    if isinstance(function, FunctionType):
        yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # nothing is in it yet
                yield cell.cell_contents
