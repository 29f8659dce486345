"""Edits of a live module's code and settings, weights apart: as `weights`, each is undone at its end."""

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

from .weights import Edit, Old, Roles, undoing


def halved(original: Callable[..., Any]) -> Callable[..., Any]:
    """The function with half its result."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * 0.5

    return replacement


def _set(role: str, attribute: str, value: Any) -> Edit:
    """An attribute that the module's code reads has another value."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner: Any = module.get_submodule(roles[role])
        before = getattr(owner, attribute)
        setattr(owner, attribute, value(before) if callable(value) else value)
        yield
        setattr(owner, attribute, before)

    return edit


@undoing
def circular(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """As seamless-tiling packs do, without a registration."""
    found = [one for one in module.modules() if isinstance(one, torch.nn.Conv2d)]
    for one in found:
        one.padding_mode = "circular"
    yield
    for one in found:
        one.padding_mode = "zeros"


@undoing
def dilated(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    owner: Any = module.get_submodule(roles["layer"])
    before = owner.dilation, owner.padding
    owner.dilation, owner.padding = (2, 2), (2, 2)
    yield
    owner.dilation, owner.padding = before


@undoing
def hooked(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    handle = module.get_submodule(roles["layer"]).register_forward_hook(lambda one, args, output: output * 0.5)
    yield
    handle.remove()


@undoing
def hooked_before(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    handle = module.get_submodule(roles["layer"]).register_forward_pre_hook(lambda one, args: (args[0] * 0.5,))
    yield
    handle.remove()


@undoing
def hooked_everywhere(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    layer = module.get_submodule(roles["layer"])
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda one, args, output: output * 0.5 if one is layer else None
    )
    yield
    handle.remove()


def _shadowed(attribute: str) -> Edit:
    """A function on one module takes the place of its class's method."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner: Any = module.get_submodule(roles["layer"])
        setattr(owner, attribute, halved(getattr(owner, attribute)))
        yield
        delattr(owner, attribute)

    return edit


@undoing
def marked(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """A pack's own mark on a layer, which changes nothing."""
    owner: Any = module.get_submodule(roles["layer"])
    owner.a_packs_mark = True
    yield
    vars(owner).pop("a_packs_mark", None)


@undoing
def mark_gives_way(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """One attribute goes, another comes."""
    owner: Any = module.get_submodule(roles["layer"])
    del owner.a_packs_mark
    owner.forward = halved(owner.forward)
    yield
    del owner.forward
    owner.a_packs_mark = True


@undoing
def classed_anew(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """A layer of a subclass whose name is the class's own."""
    owner: Any = module.get_submodule(roles["layer"])
    before: Any = type(owner)
    owner.__class__ = type(
        before.__name__,
        (before,),
        {"forward": halved(before.forward), "__module__": before.__module__, "__qualname__": before.__qualname__},
    )
    yield
    owner.__class__ = before


@undoing
def weight_classed_anew(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """The same weight object, of a class that computes in its own way."""

    class Scaled(torch.nn.Parameter):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                result = function(*args, **(kwargs or {}))
            convolution = getattr(function, "__name__", "").startswith("conv")
            return result * 0.5 if convolution else result

    owner: Any = module.get_submodule(roles["layer"])
    owner.weight.__class__ = Scaled
    yield
    owner.weight.__class__ = torch.nn.Parameter


@undoing
def reordered(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """The same layers in another order."""
    table = module.get_submodule(roles["sequence"])._modules
    before = [*table.items()]

    def write(items: list[Any]) -> None:
        table.clear()
        table.update(items)

    write([before[0], before[2], before[1]])
    yield
    write(before)


@undoing
def appended(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """A layer more."""
    sequence: Any = module.get_submodule(roles["sequence"])
    sequence.append(torch.nn.Tanh())
    yield
    del sequence[-1]


@undoing
def compiled_call(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """What `Module.compile` leaves on a layer."""
    owner: Any = module.get_submodule(roles["layer"])
    owner._compiled_call_impl = halved(owner._call_impl)
    yield
    owner._compiled_call_impl = None


def _patched(find: Callable[[torch.nn.Module, Roles], tuple[Any, str]], change: Any = halved) -> Edit:
    """A function or class attribute is replaced where the module's code finds it."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner, name = find(module, roles)
        with patch.object(owner, name, change(getattr(owner, name))):
            yield

    return edit


def _block_method(module: torch.nn.Module, roles: Roles) -> tuple[Any, str]:
    return type(module.get_submodule(roles["block"])), "forward"


def _layer_method(module: torch.nn.Module, roles: Roles) -> tuple[Any, str]:
    return type(module.get_submodule(roles["layer"])), "_conv_forward"


def _call_of_every_module(original: Any) -> Any:
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        return result * 0.5 if isinstance(self, torch.nn.GroupNorm) else result

    return call


def _scaled_sum(original: Any) -> Any:
    def add(self: torch.Tensor, other: Any) -> Any:
        result = original(self, other)
        return result * 0.9 if result.ndim == 4 else result

    return add


def _first_half_scaled(original: Any) -> Any:
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
_REFERRED = {"ResBlock": "checkpoint", "ResnetBlock": "conv_carry_causal_3d"}


@undoing
def vendored_method(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """A method of the same bytecode, from a copy of the host's file in which another function was edited."""
    cls: Any = type(module.get_submodule(roles["block"]))
    copy = vendored(sys.modules[cls.__module__])
    name = _REFERRED[cls.__name__]
    setattr(copy, name, halved(getattr(copy, name)))
    with patch.object(cls, "forward", getattr(copy, cls.__name__).forward):
        yield


@undoing
def vendored_file_under_the_hosts_name(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """The same where the copy pretends to be the host's own module."""
    cls: Any = type(module.get_submodule(roles["block"]))
    copy = vendored(sys.modules[cls.__module__])
    name = _REFERRED[cls.__name__]
    setattr(copy, name, halved(getattr(copy, name)))
    method = getattr(copy, cls.__name__).forward
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


CODE: dict[str, Edit] = {
    "padding mode": circular,
    "eps of a norm": _set("norm", "eps", 10.0),
    "dilation of a layer": dilated,
    "forward hook": hooked,
    "forward pre-hook": hooked_before,
    "hook of every module": hooked_everywhere,
    "forward of a layer": _shadowed("forward"),
    "_conv_forward of a layer": _shadowed("_conv_forward"),
    "_call_impl of a layer": _shadowed("_call_impl"),
    "_compiled_call_impl of a layer": compiled_call,
    "a mark gives way": mark_gives_way,
    "subclass of the same name": classed_anew,
    "class of a weight": weight_classed_anew,
    "method of a block's class": _patched(_block_method),
    "method of a layer's class": _patched(_layer_method),
    "call of every module": _patched(lambda *_: (torch.nn.Module, "__call__"), _call_of_every_module),
    "weight as a property": weight_property,
    "vendored method": vendored_method,
    "vendored method under the host's name": vendored_file_under_the_hosts_name,
    "global of a method": global_changed,
    "Tensor's sum": _patched(lambda *_: (torch.Tensor, "__add__"), _scaled_sum),
    "torch.nn.functional's silu": _patched(lambda *_: (torch.nn.functional, "silu")),
    "mode around operations": dispatch_mode,
}
# Of what a UNet and a ControlNet have, and a VAE has not.
OF_TRANSFORMERS: dict[str, Edit] = {
    "heads of an attention": _set("attention", "heads", lambda heads: 2 * heads),
    "order of layers": reordered,
    "a layer more": appended,
    "torch's cat": _patched(lambda *_: (torch, "cat")),
    "Tensor's chunk": _patched(lambda *_: (torch.Tensor, "chunk"), _first_half_scaled),
    "defaults of a function": defaults_changed,
    "code of a function": code_changed,
}
PREPARED: dict[str, Edit] = {"a mark gives way": marked}
