"""Binding a weightless graph to the tensors of a live module, and noticing when they have moved.

The host replaces Parameters (LoRA), moves storages (offload) and changes values in place. A graph holds bare
addresses, so before every call each of its weights must still be the same object at the same address, of the same
shape and strides. That check is cheap (0.3 us a weight). A binding keeps no tensor alive, so it never holds memory that
the host wants back; whoever calls the graph holds what it reads (`Held`), or finds that it is gone.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import parametrize

from ...backends import Runner
from ...common import reasons
from ...common.refused import Refused
from ...common.tensor_meta import TensorMeta, dtype_name
from ...common.torch_guards import TensorLooks
from ...common.torch_private import own_parameters, parameter_table_of, without_class
from ...compiler.composite_weights import MEMORY, PLAIN, as_read

_ADDRESS, _REFERENT = torch.Tensor.data_ptr, weakref.ref.__call__


@dataclass(frozen=True)
class _Elsewhere:
    """A weight that is no parameter of its module: a buffer, a plain attribute, or one tensor of a composite weight.

    Attributes:
        names: below the module: several for a part of a weight.
        identities: of what they lead to, one after the other: what is between module and tensor holds facts.
    """

    owner: weakref.ref[torch.nn.Module]
    names: tuple[str, ...]
    identities: tuple[int, ...]
    address: int

    @classmethod
    def of(cls, owner: torch.nn.Module, key: str, tensor: torch.Tensor) -> _Elsewhere:
        names = tuple(key.split("."))
        return cls(weakref.ref(owner), names, tuple(map(id, _path(owner, names))), tensor.data_ptr())

    def tensor(self) -> Any:
        return _path(self.owner(), self.names)[-1]

    def holds(self) -> bool:
        chain = _path(self.owner(), self.names)
        return tuple(map(id, chain)) == self.identities and chain[-1].data_ptr() == self.address


@dataclass(frozen=True)
class Binding:
    """The addresses a runner was given, and what to check to know that they still hold.

    Attributes:
        owners: the modules that have parameters.
        places: of each parameter, the number of its owner and its name there.
        identities, addresses: of all these parameters, in order.
        looks: of these parameters and of what is elsewhere.
        storages: the memory at these addresses, which is not kept alive by this.
        starts: where each one's memory begins.
    """

    module: weakref.ref[torch.nn.Module]
    owners: tuple[weakref.ref[torch.nn.Module], ...]
    places: tuple[tuple[int, ...], tuple[str, ...]]
    identities: list[int]
    addresses: list[int]
    elsewhere: tuple[_Elsewhere, ...]
    looks: TensorLooks
    storages: tuple[weakref.ref[torch.UntypedStorage], ...] = ()
    starts: tuple[int, ...] = ()

    def holds(self, module: torch.nn.Module) -> bool:
        """Whether every weight is still the same object at the same address, and looks the same.

        Some 1700 look-ups for SDXL's UNet.
        """
        owners: list[Any] = list(map(_REFERENT, self.owners))
        if self.module() is not module or None in owners:
            return False
        numbers, names = self.places
        tables = list(map(parameter_table_of, owners))
        tensors: list[Any] = list(map(dict.get, map(tables.__getitem__, numbers), names))
        if list(map(id, tensors)) != self.identities or list(map(_ADDRESS, tensors)) != self.addresses:
            return False
        if self.elsewhere:
            if not all(one.holds() for one in self.elsewhere):
                return False
            tensors += (one.tensor() for one in self.elsewhere)
        return bool(self.looks.same_as(*tensors))

    def can_be_read(self, module: torch.nn.Module, memory: list[torch.UntypedStorage] | None, checked: bool) -> bool:
        """Whether a graph may read what a module had when it was bound.

        Args:
            memory: see `Held.hold`.
            checked: that this is what the module has, too; else `holds` is asked while the device computes.
        """
        if memory is None:
            return False
        return self.holds(module) if checked else self.module() is module and self.is_in(memory)

    def is_in(self, memory: list[torch.UntypedStorage]) -> bool:
        """Whether what the graph reads is still there: a change of its size frees memory that is kept alive."""
        return tuple(map(torch.UntypedStorage.data_ptr, memory)) == self.starts

    def memory(self) -> list[torch.UntypedStorage] | None:
        """The memory that the graph reads, to be kept alive; None: some of it is gone."""
        storages = [storage() for storage in self.storages]
        return None if None in storages else storages  # type: ignore[return-value]


class Held:
    """The memory that graphs read, kept alive although others may replace the weights that own it.

    For as long as a run lasts: a change that nobody noticed then gives stale weights, never freed memory.
    """

    def __init__(self) -> None:
        self._storages: dict[int, tuple[Binding, list[torch.UntypedStorage]]] = {}
        with _lock:
            _everything_held.add(self)

    def hold(self, owner: int, binding: Binding) -> list[torch.UntypedStorage] | None:
        """Hold what a graph is bound to, in place of what it was bound to before; None: some of it is gone.

        Others may have this let go of it at any moment: what is returned is for whoever reads the memory to keep.

        Args:
            owner: any number for the graph.
        """
        held = self._storages.get(owner)
        if held is not None and held[0] is binding:
            return held[1]
        storages = binding.memory()
        if storages is not None:
            self.put(owner, binding, storages)
        return storages

    def put(self, owner: int, binding: Binding, storages: list[torch.UntypedStorage]) -> None:
        """Hold these, which a graph was just bound to."""
        self._storages[owner] = binding, storages

    def is_on(self, device: torch.device) -> bool:
        """Whether it holds memory of a device."""
        return any(storages and storages[0].device == device for _, storages in list(self._storages.values()))

    def release(self) -> None:
        """Let go of everything."""
        self._storages = {}


_everything_held: weakref.WeakSet[Held] = weakref.WeakSet()
_lock = threading.Lock()  # runs begin in one thread while another asks for their memory


def _all_held() -> list[Held]:
    with _lock:
        return list(_everything_held)


def is_held(device: torch.device) -> bool:
    """Whether a run under way holds memory of a device."""
    return any(held.is_on(device) for held in _all_held())


def release_held(device: torch.device) -> None:
    """Let go of what runs under way hold on a device: somebody needs the memory. Their next calls hold it again."""
    for held in _all_held():
        if held.is_on(device):
            held.release()


def _path(owner: Any, names: Iterable[str]) -> list[Any]:
    """What attributes lead to, one below the other: None from where there is none."""
    chain = []
    for name in names:
        owner = getattr(owner, name, None)
        chain.append(owner)
    return chain


def _located(owners: Mapping[str, torch.nn.Module], name: str) -> tuple[torch.nn.Module | None, str]:
    """The module that has a weight, and the path below it: a name, or that of a weight and of one of its tensors."""
    path, _, key = name.rpartition(".")
    while path and path not in owners:
        path, _, last = path.rpartition(".")
        key = f"{last}.{key}"
    return owners.get(path), key


def bind(
    runner: Runner, module: torch.nn.Module, constants: Iterable[TensorMeta], device: torch.device, prefix: str
) -> tuple[Binding, list[torch.UntypedStorage]] | Refused:
    """Bind `runner` to the live tensors of `module` (the graph knows them as `prefix` + name).

    Every tensor must be a plain one on `device` with the compiled shape, stride and dtype, for nothing below checks.

    Returns:
        The binding, and the tensors' memory, to be kept alive.
    """
    tensors: dict[str, torch.Tensor] = {}
    parameters: dict[torch.nn.Module, list[tuple[str, torch.Tensor]]] = {}
    elsewhere: list[tuple[torch.nn.Module, str, torch.Tensor]] = []
    owners = dict(module.named_modules(remove_duplicate=False))
    for constant in constants:
        name = constant.name.removeprefix(prefix)
        owner, key = _located(owners, name)
        key, of_memory = key.removesuffix(f".{MEMORY}"), key.endswith(f".{MEMORY}")
        weight = tensor = _path(owner, key.split("."))[-1]
        if owner is None or not isinstance(tensor, torch.Tensor):
            return Refused(reasons.NoSuchWeight(name))
        if parametrize.is_parametrized(owner, key):  # another tensor at each look
            return Refused(reasons.WeightComputed(name))
        if of_memory:
            tensor = without_class(weight)
        if type(tensor) not in PLAIN:
            return Refused(reasons.NotPlainWeight(type(tensor).__name__))
        if tensor.device != device:
            return Refused(reasons.WeightElsewhere(str(tensor.device), str(device)))
        if tensor.is_neg() or tensor.is_conj():  # its memory holds other values than it does
            return Refused(reasons.NotPlainWeight("view of negated or conjugated values"))
        read = as_read(tensor) if "." in key else tensor.detach()
        layout = tuple(read.shape), read.stride(), dtype_name(read.dtype)
        if layout != (constant.shape, constant.stride, constant.dtype):
            got = f"{layout[2]} {list(layout[0])} with strides {list(layout[1])}"
            wanted = f"{constant.dtype} {list(constant.shape)} with {list(constant.stride)}"
            return Refused(reasons.WeightDiffers(name, got, wanted))
        tensors[constant.name] = read
        entry = key, weight
        if own_parameters(owner).get(key) is weight:
            parameters.setdefault(owner, []).append(entry)
        else:
            elsewhere.append((owner, *entry))
    runner.bind(tensors)
    made = list(parameters.items())
    storages = [tensor.untyped_storage() for tensor in tensors.values()]
    whole = _binding(module, made, elsewhere)
    starts = tuple(storage.data_ptr() for storage in storages)
    return dataclasses.replace(whole, storages=tuple(map(weakref.ref, storages)), starts=starts), storages


def _binding(
    module: torch.nn.Module,
    parameters: list[tuple[torch.nn.Module, list[tuple[str, torch.Tensor]]]],
    elsewhere: list[tuple[torch.nn.Module, str, torch.Tensor]],
) -> Binding:
    flat = [tensor for _, entries in parameters for _, tensor in entries]
    return Binding(
        weakref.ref(module),
        tuple(weakref.ref(owner) for owner, _ in parameters),
        (
            tuple(number for number, (_, entries) in enumerate(parameters) for _ in entries),
            tuple(key for _, entries in parameters for key, _ in entries),
        ),
        [id(tensor) for tensor in flat],
        [tensor.data_ptr() for tensor in flat],
        tuple(_Elsewhere.of(owner, key, one) for owner, key, one in elsewhere),
        TensorLooks([*flat, *(one for _, _, one in elsewhere)]),
    )
