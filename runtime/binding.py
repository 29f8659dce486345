"""Binding a weightless graph to the tensors of a live module, and noticing when they have moved.

The host replaces Parameters (LoRA), moves storages (offload) and changes values in place. A graph holds bare
addresses, so before every call each of its weights must still be the same object at the same address. That check
is cheap (an attribute and an address per weight); no tensor is kept alive by it, so it never holds memory
that the host wants back.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..backends import Runner
from ..common import reasons
from ..common.shapes import Refused
from ..common.tensor_meta import TensorMeta
from ..common.torch_private import own_parameters


def constants_of(module: torch.nn.Module, prefix: str = "") -> tuple[TensorMeta, ...]:
    """Every parameter and buffer of `module` as the compiled code will rely on it, names prefixed."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return tuple(TensorMeta.of(prefix + n, t) for n, t in named)


_PARTS = 32


@dataclass(frozen=True)
class _Elsewhere:
    """A weight that is no parameter of its module: a buffer, or a plain attribute."""

    owner: weakref.ref[torch.nn.Module]
    key: str
    identity: int
    address: int

    def holds(self) -> bool:
        tensor = getattr(self.owner(), self.key, None)
        return tensor is not None and id(tensor) == self.identity and tensor.data_ptr() == self.address


@dataclass(frozen=True)
class Binding:
    """The addresses a runner was given, and what to check to know that they still hold.

    Attributes:
        owners, keys: the modules that have parameters, and the names of each one's.
        identities, addresses: of all these parameters, in order.
        parts: the same in pieces.
    """

    module: weakref.ref[torch.nn.Module]
    owners: tuple[weakref.ref[torch.nn.Module], ...]
    keys: tuple[tuple[str, ...], ...]
    identities: list[int]
    addresses: list[int]
    elsewhere: tuple[_Elsewhere, ...]
    parts: tuple[Binding, ...] = ()

    def holds_part(self, module: torch.nn.Module, number: int) -> bool:
        """The same as `holds` of some weights, others for each number."""
        return self.parts[number % len(self.parts)].holds(module)

    def holds(self, module: torch.nn.Module) -> bool:
        """Whether every weight is still the same object at the same address. Some 1700 look-ups before every call."""
        owners = [owner() for owner in self.owners]
        if self.module() is not module or None in owners:
            return False
        tables = [own_parameters(owner) for owner in owners if owner is not None]
        tensors = [table.get(key) for table, keys in zip(tables, self.keys, strict=True) for key in keys]
        if list(map(id, tensors)) != self.identities:
            return False
        same = list(map(torch.Tensor.data_ptr, tensors)) == self.addresses  # type: ignore[arg-type]
        return same and all(one.holds() for one in self.elsewhere)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bind(
    runner: Runner, module: torch.nn.Module, constants: Iterable[TensorMeta], device: torch.device, prefix: str
) -> Binding | Refused:
    """Bind `runner` to the live tensors of `module` (the graph knows them as `prefix` + name).

    Every tensor must be a plain one on `device` with the compiled shape, stride and dtype, for nothing below checks.
    """
    tensors: dict[str, torch.Tensor] = {}
    parameters: dict[torch.nn.Module, list[tuple[str, int, int]]] = {}
    elsewhere: list[_Elsewhere] = []
    owners = dict(module.named_modules(remove_duplicate=False))
    for constant in constants:
        name = constant.name.removeprefix(prefix)
        path, _, key = name.rpartition(".")
        owner = owners.get(path)
        tensor = getattr(owner, key, None)
        if owner is None or not isinstance(tensor, torch.Tensor):
            return Refused(reasons.NoSuchWeight(name))
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return Refused(reasons.NotPlainWeight(type(tensor).__name__))
        if tensor.device != device:
            return Refused(reasons.WeightElsewhere(str(tensor.device), str(device)))
        found = tuple(tensor.shape), tensor.stride(), _name_of(tensor.dtype)
        if found != (constant.shape, constant.stride, constant.dtype):
            got = f"{found[2]} {list(found[0])} with strides {list(found[1])}"
            wanted = f"{constant.dtype} {list(constant.shape)} with {list(constant.stride)}"
            return Refused(reasons.WeightDiffers(name, got, wanted))
        tensors[constant.name] = tensor.detach()
        identity, address = id(tensor), tensor.data_ptr()
        if own_parameters(owner).get(key) is tensor:
            parameters.setdefault(owner, []).append((key, identity, address))
        else:
            elsewhere.append(_Elsewhere(weakref.ref(owner), key, identity, address))
    runner.bind(tensors)
    made = list(parameters.items())
    parts = (_binding(module, made[number::_PARTS], elsewhere[number::_PARTS]) for number in range(_PARTS))
    return dataclasses.replace(_binding(module, made, elsewhere), parts=tuple(parts))


def _binding(
    module: torch.nn.Module,
    parameters: list[tuple[torch.nn.Module, list[tuple[str, int, int]]]],
    elsewhere: list[_Elsewhere],
) -> Binding:
    flat = [entry for _, entries in parameters for entry in entries]
    return Binding(
        weakref.ref(module),
        tuple(weakref.ref(owner) for owner, _ in parameters),
        tuple(tuple(key for key, _, _ in entries) for _, entries in parameters),
        [identity for _, identity, _ in flat],
        [address for _, _, address in flat],
        tuple(elsewhere),
    )
