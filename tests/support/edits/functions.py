"""Edits of functions that a live module's code calls, for all modules that call them."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from .edit import Edit, Old, Roles, halved, undoing


def patched(find: Callable[[torch.nn.Module, Roles], tuple[Any, str]], change: Any = halved) -> Edit:
    """A function or class attribute is replaced where the module's code finds it."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner, name = find(module, roles)
        with patch.object(owner, name, change(getattr(owner, name))):
            yield

    return edit


def block_method(module: torch.nn.Module, roles: Roles) -> tuple[Any, str]:
    return type(module.get_submodule(roles["block"])), "forward"


def layer_method(module: torch.nn.Module, roles: Roles) -> tuple[Any, str]:
    return type(module.get_submodule(roles["layer"])), "_conv_forward"


def call_of_every_module(original: Any) -> Any:
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        return result * 0.5 if isinstance(self, torch.nn.GroupNorm) else result

    return call


def scaled_sum(original: Any) -> Any:
    def add(self: torch.Tensor, other: Any) -> Any:
        result = original(self, other)
        return result * 0.9 if result.ndim == 4 else result

    return add


def first_half_scaled(original: Any) -> Any:
    def chunk(self: torch.Tensor, chunks: int, dim: int = 0) -> Any:
        found = original(self, chunks, dim)
        return (found[0] * 0.5, *found[1:]) if dim == -1 else found

    return chunk


@undoing
def weight_property(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """A property of the layer's class hides the weights of all such layers."""
    cls: Any = type(module.get_submodule(roles["layer"]))
    cls.weight = property(lambda self: self._parameters["weight"] * 0.5)
    yield
    del cls.weight


@undoing
def defaults_changed(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """A host function's default values, in place."""
    from comfy.ldm.modules.diffusionmodules import util

    before = util.timestep_embedding.__defaults__
    util.timestep_embedding.__defaults__ = (100, *before[1:])
    yield
    util.timestep_embedding.__defaults__ = before


@undoing
def code_changed(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """A host function's code, in place."""
    from comfy.ldm.modules.diffusionmodules import util

    def timestep_embedding(timesteps: Any, dim: Any, max_period: int = 10000, repeat_only: bool = False) -> Any:
        import torch

        return torch.zeros(timesteps.shape[0], dim)

    before = util.timestep_embedding.__code__
    util.timestep_embedding.__code__ = timestep_embedding.__code__
    yield
    util.timestep_embedding.__code__ = before


def vendored(original: ModuleType) -> ModuleType:
    """A pack's copy of a file of the host."""
    assert original.__file__ is not None
    name = f"{original.__package__}.a_packs_{Path(original.__file__).stem}"
    spec = importlib.util.spec_from_file_location(name, original.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


# What a block's method of the host refers to by name in its file.
_REFERRED = {
    "ResBlock": "checkpoint",
    "ResnetBlock": "conv_carry_causal_3d",
    "SingleStreamBlock": "apply_mod",
}


def _vendored(module: torch.nn.Module, roles: Roles) -> tuple[Any, Any]:
    """A block's class, and its method of the same bytecode from a copy of the host's file with another function."""
    cls: Any = type(module.get_submodule(roles["block"]))
    copy = vendored(sys.modules[cls.__module__])
    name = _REFERRED[cls.__name__]
    setattr(copy, name, halved(getattr(copy, name)))
    return cls, getattr(copy, cls.__name__).forward


@undoing
def vendored_method(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """A method of the same bytecode, from a copy of the host's file in which another function was edited."""
    cls, method = _vendored(module, roles)
    with patch.object(cls, "forward", method):
        yield


@undoing
def vendored_file_under_the_hosts_name(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """The same where the copy pretends to be the host's own module."""
    cls, method = _vendored(module, roles)
    method.__module__ = cls.__module__
    with patch.object(cls, "forward", method):
        yield


@undoing
def global_changed(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """A function that a block's method finds in its file by name."""
    cls: Any = type(module.get_submodule(roles["block"]))
    home = sys.modules[cls.__module__]
    with patch.object(home, _REFERRED[cls.__name__], halved(getattr(home, _REFERRED[cls.__name__]))):
        yield


@undoing
def dispatch_mode(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """A mode that halves convolutions, entered for good and left at the end."""
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            return result * 0.5 if function is torch.nn.functional.silu else result

    with contextlib.ExitStack() as entered:
        entered.enter_context(Mode())
        yield
