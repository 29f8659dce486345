"""Edits of a live module's code and settings, weights apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .edit import Edit, Old, Roles, halved, undoing
from .functions import (
    block_method,
    call_of_every_module,
    code_changed,
    defaults_changed,
    dispatch_mode,
    first_half_scaled,
    global_changed,
    layer_method,
    patched,
    scaled_sum,
    vendored_file_under_the_hosts_name,
    vendored_method,
    weight_property,
)


def _set(role: str, **values: Any) -> Edit:
    """Attributes that the module's code reads have other values; a function makes one from the value before."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner: Any = module.get_submodule(roles[role])
        before = {name: getattr(owner, name) for name in values}
        for name, value in values.items():
            setattr(owner, name, value(before[name]) if callable(value) else value)
        yield
        for name, value in before.items():
            setattr(owner, name, value)

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


def _hooked(register: Callable[[torch.nn.Module], Any]) -> Edit:
    """A hook that halves what a layer takes or gives."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        handle = register(module.get_submodule(roles["layer"]))
        yield
        handle.remove()

    return edit


def _of_every_module(layer: torch.nn.Module) -> Any:
    return torch.nn.modules.module.register_module_forward_hook(
        lambda one, args, output: output * 0.5 if one is layer else None
    )


def _shadowed(attribute: str, method: str = "") -> Edit:
    """A function on one module takes the place of its class's method, or of what its class asks for before one."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner: Any = module.get_submodule(roles["layer"])
        setattr(owner, attribute, halved(getattr(owner, method or attribute)))
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


def _of_the_same_name(cls: Any) -> Any:
    """A subclass whose name is the class's own."""
    named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls,), {"forward": halved(cls.forward), **named})


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


CODE: dict[str, Edit] = {
    "padding mode": circular,
    "eps of a norm": _set("norm", eps=10.0),
    "dilation of a layer": _set("layer", dilation=(2, 2), padding=(2, 2)),
    "forward hook": _hooked(lambda layer: layer.register_forward_hook(lambda one, args, output: output * 0.5)),
    "forward pre-hook": _hooked(lambda layer: layer.register_forward_pre_hook(lambda one, args: (args[0] * 0.5,))),
    "hook of every module": _hooked(_of_every_module),
    "forward of a layer": _shadowed("forward"),
    "_conv_forward of a layer": _shadowed("_conv_forward"),
    "_call_impl of a layer": _shadowed("_call_impl"),
    # What `Module.compile` leaves on a layer.
    "_compiled_call_impl of a layer": _shadowed("_compiled_call_impl", "_call_impl"),
    "a mark gives way": mark_gives_way,
    "subclass of the same name": _set("layer", __class__=_of_the_same_name),
    "class of a weight": weight_classed_anew,
    "method of a block's class": patched(block_method),
    "method of a layer's class": patched(layer_method),
    "call of every module": patched(lambda *_: (torch.nn.Module, "__call__"), call_of_every_module),
    "weight as a property": weight_property,
    "vendored method": vendored_method,
    "vendored method under the host's name": vendored_file_under_the_hosts_name,
    "global of a method": global_changed,
    "Tensor's sum": patched(lambda *_: (torch.Tensor, "__add__"), scaled_sum),
    "torch.nn.functional's silu": patched(lambda *_: (torch.nn.functional, "silu")),
    "mode around operations": dispatch_mode,
}
# Of what a UNet and a ControlNet have, and a VAE has not.
OF_TRANSFORMERS: dict[str, Edit] = {
    "heads of an attention": _set("attention", heads=lambda heads: 2 * heads),
    "order of layers": reordered,
    "a layer more": appended,
    "torch's cat": patched(lambda *_: (torch, "cat")),
    "Tensor's chunk": patched(lambda *_: (torch.Tensor, "chunk"), first_half_scaled),
    "defaults of a function": defaults_changed,
    "code of a function": code_changed,
}
PREPARED: dict[str, Edit] = {"a mark gives way": marked}
