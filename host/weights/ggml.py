"""Weights of ComfyUI-GGUF, a custom node pack: bytes, which its layers dequantise at each use, and add LoRAs to.

A graph reads the bytes as a plain tensor and dequantises them. It is captured from the pack's own layers, which the
compiling process loads from the pack's folder: here is no dequantisation, and a graph's record of code has the pack's.
Where a weight has LoRAs, the pack's own function computes it before each block (`low_vram_blocks`).

Facts of the pack that are used here, as of its commit 795e451: a `GGMLTensor` has `tensor_type` (gguf's enumeration,
None for a plain tensor), `tensor_shape` and `patches`; its layers are `GGMLOps.*`, of which a Linear asks
`cast_bias_weight` for what it multiplies with; its patcher hands LoRAs to quantised weights and writes into others.
"""

from __future__ import annotations

import functools
import importlib
import sys
import weakref
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.torch_private import Tables, set_tables, tables, without_class
from ...compiler.composite_weights import MEMORY, Made, WeightParts, class_name
from ...compiler.computed_tables import ComputedTables
from ...compiler.layer_swap import ComponentTensors, ExactLinear

_TENSOR, _PATCHER = "GGMLTensor", "GGUFModelPatcher"
BOOKKEEPING = {"largest_layer"}  # of the pack's layers: one has it, by which the pack estimates memory
_OPTIONS = "dequant_dtype", "patch_dtype"
_USED = (_TENSOR, "GGMLLayer.cast_bias_weight", "GGMLOps.Linear", "is_quantized", "dequantize_tensor")


def _pack(cls: type) -> Any:
    """The pack's module of layers, by its class of tensors; None: it is no such class, or the pack lacks something."""
    if cls not in _packs:  # asked for each weight of each block
        module = sys.modules.get(cls.__module__)
        _packs[cls] = module if cls.__name__ == _TENSOR and module is not None and _is_packs(module) else None
    return _packs[cls]


_packs: weakref.WeakKeyDictionary[type, ModuleType | None] = weakref.WeakKeyDictionary()


def _is_packs(module: ModuleType) -> bool:
    return all(_has(module, name) for name in _USED)


def _has(owner: Any, name: str) -> bool:
    first, _, rest = name.partition(".")
    return first in vars(owner) and (not rest or _has(vars(owner)[first], rest))


def is_bytes(weight: Any) -> bool:
    """Tell whether a weight is the pack's, quantised or not."""
    return isinstance(weight, torch.Tensor) and _pack(type(weight)) is not None


def _is_quantised(weight: Any) -> bool:
    return is_bytes(weight) and bool(_pack(type(weight)).is_quantized(weight))


def has_patches(weight: Any) -> bool:
    """Tell whether LoRAs are added to a weight at each use."""
    return _is_quantised(weight) and bool(getattr(weight, "patches", None))


def is_patched(patcher: Any) -> bool:
    """Tell whether a patcher's model has weights to which LoRAs are added at each use.

    The host changes a number when the pack's patcher puts LoRAs there, or takes them away.
    """
    if type(patcher).__name__ != _PATCHER:
        return False
    model, then = patcher.model, getattr(patcher.model, "current_weight_patches_uuid", None)
    if model not in _patched or _patched[model][0] != then:
        _patched[model] = then, any(map(has_patches, model.parameters()))
    return _patched[model][1]


_patched: weakref.WeakKeyDictionary[torch.nn.Module, tuple[Any, bool]] = weakref.WeakKeyDictionary()


# ---- what a weight consists of


def parts(weight: torch.Tensor) -> WeightParts | None:
    """Return the bytes of a weight, and what they mean; None: it is none of the pack's."""
    if not is_bytes(weight):
        return None
    packed: Any = weight
    facts = getattr(packed.tensor_type, "name", ""), tuple(packed.tensor_shape), has_patches(weight)
    return WeightParts({MEMORY: without_class(weight)}, ("GGUF", *facts))


def made(weight: torch.Tensor, memory: torch.Tensor | None = None) -> Made | None:
    """Return how to make such a weight again, without LoRAs; None: it is none of the pack's.

    Args:
        memory: of the weight; None: its own.
    """
    if not is_bytes(weight):
        return None
    packed: Any = weight
    facts = {"tensor_type": packed.tensor_type, "tensor_shape": torch.Size(packed.tensor_shape), "patches": []}
    return functools.partial(type(weight), **facts), (without_class(weight) if memory is None else memory,)


def without_values(weight: torch.Tensor, computed: torch.dtype | None) -> torch.Tensor | None:
    """Return a weight like another on the meta device, as graphs have it; None: it is none of the pack's.

    Args:
        computed: dtype of weights to which LoRAs are added.
    """
    if not is_bytes(weight):
        return None
    if has_patches(weight):
        shape: Any = getattr(weight, "tensor_shape", ())
        return torch.empty(tuple(shape), dtype=computed, device="meta")
    memory = without_class(weight)
    again = made(weight, torch.empty_strided(memory.shape, memory.stride(), dtype=memory.dtype, device="meta"))
    assert again is not None
    call, arguments = again
    remade: torch.Tensor = call(*arguments)
    return remade


def brought(
    layer: Any, device: torch.device, computed: torch.dtype
) -> tuple[torch.Tensor | None, torch.Tensor | None] | None:
    """Weight and bias of a layer as graphs read them, by the pack's own function where LoRAs are added; None where the
    layer has none of the pack's, or all are on the device without."""
    weight, bias = (tables(layer).parameters.get(key) for key in ("weight", "bias"))
    if not is_bytes(weight):
        return None
    if has_patches(weight) or has_patches(bias):
        got = layer.cast_bias_weight(device=device, dtype=computed, bias_dtype=computed)
        return tuple(None if one is None else without_class(one) for one in got)  # type: ignore[return-value]
    if all(one is None or one.device == device for one in (weight, bias)):
        return None
    return tuple(None if one is None else one.to(device) for one in (weight, bias))  # type: ignore[return-value]


# ---- layers


def refusal(layer: torch.nn.Module, where: str, brought: bool) -> Reason | None:
    """Say why no graph reads the pack's weights of a layer, or None. `brought`: those with LoRAs, before each call."""
    weights = {name: one for name, one in tables(layer).parameters.items() if is_bytes(one)}
    for name, weight in weights.items():
        pack: Any = _pack(type(weight))
        if type(layer) is not pack.GGMLOps.Linear or name not in ("weight", "bias"):
            return reasons.QuantisedLayer(where)
        kind: Any = getattr(weight, "tensor_type", None)
        if _is_quantised(weight) and (kind not in _dequantised_by(pack) or name == "bias"):
            return reasons.WeightFormat(f"GGUF {getattr(kind, 'name', kind)}", where)
        for option, value in zip(_OPTIONS, options(type(layer)), strict=True):
            if value is not None:
                return reasons.WeightFormat(f"GGUF {getattr(kind, 'name', kind)} with {option} {value}", where)
        if has_patches(weight) and not brought:
            return reasons.WeightComputed(where)
    return None


def options(cls: type) -> tuple[Any, ...]:
    """Return what the pack's advanced loader sets for all models, which the compiling process does not know."""
    return tuple(getattr(cls, name, None) for name in _OPTIONS)


def _dequantised_by(pack: ModuleType) -> Mapping[Any, Any]:
    """The pack's functions by types. It has others dequantised by numpy."""
    module = sys.modules.get(pack.dequantize_tensor.__module__)
    functions = getattr(module, "dequantize_functions", {})
    return functions if isinstance(functions, Mapping) else {}


def is_served(layer: torch.nn.Module) -> bool:
    """Tell whether a layer has a weight of the pack's."""
    return any(map(is_bytes, tables(layer).parameters.values()))


def exact_layer(layer: Any) -> torch.nn.Module:
    """Return a layer in float32 with the values that its bytes stand for."""
    exact = ExactLinear(layer, _dequantised)
    if is_bytes(layer.bias):
        exact.bias = torch.nn.Parameter(without_class(layer.bias).float(), requires_grad=False)
    return exact


def _dequantised(weight: Any) -> torch.Tensor:
    if not _is_quantised(weight):
        return without_class(weight).float()
    values: torch.Tensor = _pack(type(weight)).dequantize_tensor(_Bytes(weight), torch.float32, torch.float32)
    if weight.patches:
        import comfy.lora

        for patches, key in weight.patches:
            values = comfy.lora.calculate_weight(patches, values, key)
    return values


class _Bytes:
    """A stand-in for the pack's tensor, which holds its bytes as a plain one: a capture follows nothing else."""

    def __init__(self, like: Any, memory: torch.Tensor | None = None) -> None:
        self.data = without_class(like) if memory is None else memory
        self.tensor_type, self.tensor_shape, self.patches = like.tensor_type, like.tensor_shape, ()

    def to(self, *args: Any, **kwargs: Any) -> _Bytes:
        """As the pack's tensor: what the bytes mean moves along."""
        return _Bytes(self, self.data.to(*args, **kwargs))

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    @property
    def shape(self) -> Any:
        return self.tensor_shape


class DequantisingLinear(torch.nn.Module):
    """The pack's layer, which reads plain tensors. In the compiling process.

    Args:
        layer: the pack's, with bytes for a weight or a bias.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight, self.bias = (
            ComponentTensors({MEMORY: without_class(one)}) if is_bytes(one) else one
            for one in (layer.weight, layer.bias)
        )
        self._kinds = {name: getattr(layer, name) for name in ("weight", "bias")}
        self._layer = [layer]  # no child: its weights are here
        self.train(layer.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self._layer[0]
        shell: Any = object.__new__(type(layer))
        vars(shell).update(vars(layer))
        set_tables(shell, Tables({}, {}, {}))
        vars(shell).update({name: self._read(name) for name in ("weight", "bias")})
        with ComputedTables():
            result: torch.Tensor = shell.forward(x)
        return result

    def _read(self, name: str) -> Any:
        holder: Any = getattr(self, name)
        if not isinstance(holder, ComponentTensors):
            return holder
        memory = getattr(holder, MEMORY)
        return _Bytes(self._kinds[name], memory) if _is_quantised(self._kinds[name]) else memory


# ---- in the compiling process


def loaded() -> Iterator[ModuleType]:
    """Iterate over the modules of layers of such packs in this process."""
    for name in [name for name in [*sys.modules] if name.endswith(".ops")]:  # of thousands, at each kind of calls
        module = sys.modules.get(name)
        if module is not None and _TENSOR in vars(module) and _is_packs(module):
            yield module


def folders() -> dict[str, list[str]]:
    """Return the folders of such packs by the names that the host gave them."""
    found: dict[str, list[str]] = {}
    for module in loaded():
        name = module.__name__.rpartition(".")[0]
        found[name] = [*getattr(sys.modules.get(name), "__path__", ())]
    return found


def load(packs: Mapping[str, list[str]]) -> None:
    """Import the layers of packs under the names that they have in the server; not their nodes."""
    for name, path in packs.items():
        package = ModuleType(name)
        package.__path__ = path
        sys.modules.setdefault(name, package)
        importlib.import_module(f"{name}.ops")


def classes() -> frozenset[str]:
    """Return the classes of such packs that skeletons are made of, as `module:name`."""
    return frozenset(map(class_name, _classes()))


def class_of(name: str) -> type | None:
    """Return a class of such a pack; None: it is none."""
    return next((one for one in _classes() if class_name(one) == name), None)


def _classes() -> Iterator[type]:
    for module in loaded():
        owned = [getattr(module, _TENSOR), *vars(module.GGMLOps).values()]
        yield from (one for one in owned if isinstance(one, type) and one.__module__ == module.__name__)
