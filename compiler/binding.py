"""Binding a weightless graph to the tensors of a live module, and noticing when they have moved.

The host replaces Parameters (LoRA), moves storages (offload) and changes values in place. A graph holds bare
addresses, so before every call each of its weights must still be the same object at the same address. That check
is cheap (an attribute and an address per weight); no tensor is kept alive by it, so it never holds memory
that the host wants back.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from .backends import Constant, Runner
from .backends.inductor import own_parameters
from .shapes import Refused


def constants_of(module: torch.nn.Module, prefix: str = "") -> tuple[Constant, ...]:
    """Every parameter and buffer of `module` as the compiled code will rely on it, names prefixed."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return tuple(
        Constant(prefix + n, tuple(t.shape), tuple(t.stride()), str(t.dtype).removeprefix("torch.")) for n, t in named
    )


@dataclass(frozen=True)
class _Watched:
    """One module's own weights: name, identity, address."""

    owner: weakref.ref[torch.nn.Module]
    tensors: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Binding:
    """The addresses a runner was given, and where to look whether they still hold."""

    module: weakref.ref[torch.nn.Module]
    watched: tuple[_Watched, ...]

    def holds(self, module: torch.nn.Module) -> bool:
        """Whether every weight is still the same object at the same address."""
        if self.module() is not module:
            return False
        for w in self.watched:
            owner = w.owner()
            if owner is None:
                return False
            # What getattr would find, without its detour for parameters: some 1700 look-ups before every call.
            parameters = own_parameters(owner)
            for key, identity, address in w.tensors:
                tensor = parameters.get(key)
                if tensor is None or key in owner.__dict__:
                    tensor = getattr(owner, key, None)
                if tensor is None or id(tensor) != identity or tensor.data_ptr() != address:
                    return False
        return True


def _find(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str, torch.Tensor] | None:
    """The submodule that owns a weight, the weight's name there, and the weight."""
    path, _, key = name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        return None
    tensor = getattr(owner, key, None)
    return (owner, key, tensor) if isinstance(tensor, torch.Tensor) else None


def bind(
    runner: Runner, module: torch.nn.Module, constants: Iterable[Constant], device: torch.device, prefix: str
) -> Binding | Refused:
    """Bind `runner` to the live tensors of `module` (the graph knows them as `prefix` + name).

    Every tensor must be a plain one on `device` with the compiled shape, stride and dtype, for nothing below checks.
    """
    tensors: dict[str, torch.Tensor] = {}
    watched: dict[torch.nn.Module, list[tuple[str, int, int]]] = {}
    for constant in constants:
        place = _find(module, constant.name.removeprefix(prefix))
        if place is None:
            return Refused(f"the model has no weight {constant.name.removeprefix(prefix)}")
        owner, key, tensor = place
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return Refused(f"a weight is a {type(tensor).__name__}, not a plain tensor")
        if tensor.device != device:
            return Refused(f"part of the model is on {tensor.device}, not on {device}")
        found = Constant(
            constant.name, tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch.")
        )
        if found != constant:
            return Refused(
                f"weight {constant.name.removeprefix(prefix)} is {found.dtype} {list(found.shape)} with strides "
                f"{list(found.stride)}, the graph was compiled for {constant.dtype} {list(constant.shape)} with "
                f"{list(constant.stride)}"
            )
        tensors[constant.name] = tensor.detach()
        watched.setdefault(owner, []).append((key, id(tensor), tensor.data_ptr()))
    runner.bind(tensors)
    return Binding(weakref.ref(module), tuple(_Watched(weakref.ref(o), tuple(found)) for o, found in watched.items()))
