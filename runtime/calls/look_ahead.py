"""What blocks will be given at the later timesteps of a sampling: the model is called up to its first block.

A prediction: what is computed by it is kept by the bits of what a block was given, so a wrong one is never used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from ...common.code_digest import home_of, underlying_function, unwrap_chain
from ...compiler.code.code_record import global_references, resolve
from ...signature.call_tree import UnknownArgumentError, flatten, functions_in, rebuild
from ...signature.parameters import as_call, options_of, parameters_of
from ..guards import code_guard
from ..guards.named_functions import LIBRARIES, is_known
from .routing import Route, answered_by


class _FirstBlock(BaseException):
    """The model called a block; models may catch any other exception."""

    def __init__(self, block: torch.nn.Module, named: Mapping[str, Any]) -> None:
        super().__init__()
        self.block = block
        self.named = named


class _Stopping:
    """Ends a call of a model at its first block."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def call_of(self, block: torch.nn.Module, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See `routing.Session`."""
        cls: Any = type(block)
        if block is self._model:
            return cls.forward(block, *args, **kwargs)
        raise _FirstBlock(block, parameters_of(cls, method).bind(args, kwargs))


def is_as_written(
    model: torch.nn.Module, is_block: Callable[[torch.nn.Module], bool], beside: Collection[str] = ()
) -> bool:
    """Whether what a model calls before its first block is of its own package, torch's or a library's: others may count
    calls.

    Looked at are the classes of its modules, their methods, functions on the modules themselves, and what all of these
    name, but for hooks, which whoever knows the timesteps looks at.

    Args:
        beside: see `Rules`.
    """
    package = type(model).__module__.partition(".")[0]
    named: list[Any] = []
    pending = [model]
    while pending:
        module = pending.pop()
        if is_block(module):
            continue
        pending += module.children()
        named += [one for one in vars(module).values() if callable(one) and type(one) is not Route]
        for base in type(module).__mro__:
            if not _is_known(base, package):
                return False
            own = [name for name, one in vars(base).items() if isinstance(one, FunctionType)]
            if base not in (object, torch.nn.Module) and not all(code_guard.is_own_method(base, name) for name in own):
                return False
            named += [vars(base)[name] for name in own if base.__module__.partition(".")[0] == package]
    return _names_nobody_else(named, package, beside)


def _is_known(cls: type, package: str) -> bool:
    """Whether a class is a package's or a library's."""
    home = getattr(sys.modules.get(cls.__module__), "__file__", None) or "<frozen"
    return cls.__module__.partition(".")[0] == package or home.startswith(LIBRARIES)


def _names_nobody_else(values: list[Any], package: str, beside: Collection[str]) -> bool:
    """Whether all functions and classes among some values are a package's or a library's, and so is what the package's
    functions name."""
    pending, seen = [*values], set[tuple[str, CodeType]]()  # equal code of another file names other things
    while pending:
        value = underlying_function(pending.pop())
        functions = [*unwrap_chain(value)]
        if callable(value) and not functions:
            if not _is_known(value if isinstance(value, type) else type(value), package):
                return False
            pending.append(getattr(value, "__wrapped__", None))
        if not is_known(value, package):
            return False
        for one in functions:
            if home_of(one).partition(".")[0] == package and (home_of(one), one.__code__) not in seen:
                seen.add((home_of(one), one.__code__))
                paths = [path for path in global_references(one.__code__) if path[0] not in beside]
                pending += [resolve(one.__globals__, path)[0] for path in paths]
    return True


class LookAhead:
    """Calls of a model like one that is about to be made, at other timesteps.

    Args:
        args, kwargs: of that call.
        timesteps: of the sampling, as the model is given them.
        packages: whose objects are taken apart by their fields.

    Raises:
        UnknownArgumentError: the call cannot be made again, or its timestep is none of these.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timesteps: Sequence[float],
        packages: Sequence[str],
    ) -> None:
        cls: Any = type(model)
        named = parameters_of(cls).bind(args, kwargs)
        self._model = model
        self._options = options_of(named)
        self._form, self._leaves = flatten(named, packages)
        if functions_in(self._form):
            raise UnknownArgumentError("a function")
        self._time, self.current = self._timestep([*timesteps])
        self.later = [one for one in dict.fromkeys(timesteps) if one < self.current]

    def _timestep(self, timesteps: list[float]) -> tuple[int, float]:
        """Which leaf is the timestep, and its value."""
        for number, leaf in enumerate(self._leaves):
            if isinstance(leaf, torch.Tensor) and leaf.ndim == 1 and leaf.is_floating_point():
                values = {*leaf.tolist()}
                if len(values) == 1 and values <= {*timesteps}:
                    return number, values.pop()
        raise UnknownArgumentError("no timestep of the sampling")

    def first_block(self, timestep: float) -> tuple[torch.nn.Module, Mapping[str, Any]] | None:
        """The first block that the model calls at a timestep, and its arguments by name; None: that cannot be told.

        The call has tensors and options of its own.
        """
        leaves: list[Any] = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        leaves[self._time].fill_(timestep)
        options = {**self._options} if isinstance(self._options, dict) else self._options
        args, kwargs = as_call(rebuild(self._form, leaves, options))
        cls: Any = type(self._model)
        before = self._state()
        try:
            with answered_by(_Stopping(self._model)):
                cls.forward(self._model, *args, **kwargs)
        except _FirstBlock as found:
            return (found.block, found.named) if self._state() == before else None
        return None

    def _state(self) -> dict[str, tuple[int, int]]:
        """What the model keeps on itself, which a call that is not made for its result may change."""
        return {
            name: (id(value), len(value) if isinstance(value, list | dict | set) else 0)
            for name, value in vars(self._model).items()
        }
