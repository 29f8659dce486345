"""Copies of a module that DynamicVRAM pages: as it is without paging, with or without weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...common.torch_private import Tables, set_tables, tables
from ...compiler.code.fingerprint import is_own_method
from .quantised import metadata_of, without_values

# What the host keeps on the modules (and on the model itself) to page them; the model computes the same without.
BOOKKEEPING = {
    "_v", "_v_signature", "_v_weight", "_v_bias", "_v_block", "_v_block_faulted", "_comfy_graph",
    "_comfy_cross_step_state", "_pins", "_pin_state", "_prefetch", "seed_key", "comfy_cast_weights",
    "weight_function", "bias_function", "weight_lowvram_function", "bias_lowvram_function", "dynamic_vbars",
    "dynamic_pins", "dynamic_patchers",
}  # fmt: skip
_ORDER = {"weight": 0, "bias": 1}  # as torch registers them; the host registers them in the file's order

Copies = tuple[torch.nn.Module, ...]  # of a module and its children, in the order of `modules()`
_Metadata = tuple[tuple[Any, ...], ...]


def plain_copies(module: torch.nn.Module) -> Copies:
    """Copy a module and its children as they are without paging: classes and configuration, no weights yet."""
    made: dict[int, torch.nn.Module] = {}

    def copy_of(original: torch.nn.Module) -> torch.nn.Module:
        earlier = made.get(id(original))
        if earlier is not None:
            return earlier
        copied: torch.nn.Module = object.__new__(type(original))
        made[id(original)] = copied
        state = {
            name: value
            for name, value in vars(original).items()
            if name not in BOOKKEEPING and not is_own_method(original, name, value)
        }
        for name in _missing(original):
            state.pop(name, None)
        children = {n: None if child is None else copy_of(child) for n, child in tables(original).children.items()}
        copied.__dict__.update(state)
        set_tables(copied, Tables({}, {}, children))
        return copied

    copy_of(module)
    return tuple(made.values())


def _missing(module: torch.nn.Module) -> list[str]:
    """Weights that a module does without, and that torch has among its parameters: here they are plain attributes.

    A norm by the root mean square has no bias in torch, either.
    """
    if isinstance(module, torch.nn.RMSNorm):
        return []
    return [name for name in _ORDER if vars(module).get(name, module) is None]


def _weights_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor | None]]:
    """A module's own parameters in torch's order, with None for the missing ones."""
    parameters: dict[str, torch.Tensor | None] = dict.fromkeys(_missing(module))
    parameters |= tables(module).parameters
    return sorted(parameters.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER)))


def dtype_of(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype that a weight is computed in. The host may keep the file's until the weight is used."""
    dtype = getattr(module, f"{name}_comfy_model_dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else tensor.dtype


def fill(copies: Copies, module: torch.nn.Module, give: Callable[[torch.nn.Module, str, torch.Tensor], Any]) -> None:
    """Put weights into the copies of a module."""
    for original, copied in zip(module.modules(), copies, strict=True):
        parameters, buffers = (
            {name: None if tensor is None else give(original, name, tensor) for name, tensor in weights}
            for weights in (_weights_of(original), tables(original).buffers.items())
        )
        set_tables(copied, Tables(parameters, buffers, tables(copied).children))


def _metadata(module: torch.nn.Module) -> _Metadata:
    """All that a skeleton depends on and that may change while the module lives."""
    rows: list[tuple[Any, ...]] = []
    for child in module.modules():
        rows.append((type(child), len(tables(child).children)))
        rows += [
            (name, tensor.shape, tensor.stride(), dtype_of(child, name, tensor), metadata_of(tensor))
            for name, tensor in [*_weights_of(child), *tables(child).buffers.items()]
            if tensor is not None
        ]
    return tuple(rows)


def without_storage(module: torch.nn.Module, computed: torch.dtype | None) -> Copies:
    """Copies of a module and its children with weights on the meta device. `computed`: see `copies_of`."""
    copies = plain_copies(module)
    made: dict[int, torch.Tensor] = {}  # weights that modules share stay shared

    def give(owner: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            dtype = dtype_of(owner, name, tensor)
            empty = without_values(tensor, computed)
            if empty is None:
                empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(empty, requires_grad=False) if is_parameter else empty
        return made[id(tensor)]

    fill(copies, module, give)
    return copies


@dataclass(frozen=True)
class PagedCopies:
    """Copies of a module that live as long as it does, for making them takes longer than a sampling step.

    They never hold the module itself, nor its weights: those with storage are emptied at the end of each run.

    Attributes:
        version: of the module's other state, by its guard.
        small: by module and name, tensors for the weights that the host does not page because they are small. It makes
            them anew for each run, and graphs want to find them where they were: they are copied there for each call.
    """

    metadata: _Metadata
    version: int
    skeletons: Copies
    filled: Copies
    small: dict[tuple[int, str], torch.Tensor]


_copies: weakref.WeakKeyDictionary[torch.nn.Module, PagedCopies] = weakref.WeakKeyDictionary()


def copies_of(module: torch.nn.Module, version: int, computed: torch.dtype | None = None) -> PagedCopies:
    """Return the copies of a module, made anew where its metadata or its state has changed.

    Args:
        version: of the module's other state, by its guard.
        computed: dtype of weights that are computed at each use.
    """
    metadata = (*_metadata(module), (computed,))
    copies = _copies.get(module)
    if copies is None or (copies.metadata, copies.version) != (metadata, version):
        copies = PagedCopies(metadata, version, without_storage(module, computed), plain_copies(module), {})
        _copies[module] = copies
    return copies
