"""PEFT's adapter layers, which LoRA files of diffusers become.

A layer whose adapters are merged, as `fuse_lora` does, or turned off computes what the layer inside it does. Where none
computes more, the graph of the plain model serves. LoRA layers that do compute are `LowRankLayer`s in what is compiled:
one graph for all LoRAs that have layers of the same sizes in the same places, at any strength.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from ..common import reasons
from ..common.reasons import Reason
from ..common.torch_private import Tables, set_tables, tables
from .low_rank import LowRankLayer

_LIBRARY = "peft"
_INNER = "base_layer"
# PEFT's layers that compute a plain LoRA, by their modules. The second differs in how it merges alone.
_TORCHAOS = "peft.tuners.lora.torchao"
_LORA = {"peft.tuners.lora.layer": ("Linear", "Conv2d"), _TORCHAOS: ("TorchaoLoraLinear",)}
_PLAIN = (torch.nn.Linear, torch.nn.Conv2d)
_ALIGNED = 4  # float32 values in 16 bytes, to which compiled code expects tensors aligned


def _is_adapter(module: torch.nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == _LIBRARY


def _layers(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The outermost adapter layers by name."""
    if _is_adapter(module):
        yield "", module
        return
    for name, child in module.named_children():
        for inner, layer in _layers(child):
            yield f"{name}.{inner}" if inner else name, layer


def first_of(module: torch.nn.Module) -> str | None:
    """The name of the first adapter layer, or None."""
    return next((name for name, _ in _layers(module)), None)


def _active(layer: Any) -> list[str]:
    """The adapters that a layer computes with, in order."""
    if layer.merged or layer.disable_adapters:
        return []
    return [name for name in layer.active_adapters if name in layer.lora_A]


def refusal(module: torch.nn.Module) -> Reason | None:
    """Why no graph computes what a module with adapter layers does, or None."""
    for name, layer in _layers(module):
        plain = isinstance(getattr(layer, _INNER, None), torch.nn.Module)
        unmerges = plain and bool(layer.merged) and bool(layer.disable_adapters)  # at its next call
        if not plain or unmerges or not _is_low_rank(layer):
            return reasons.AdapterLayers("PEFT", name)
    return None


def _is_low_rank(layer: Any) -> bool:
    """Whether a layer computes with plain LoRAs, or with no adapter at all."""
    if layer.merged or layer.disable_adapters:
        return True
    cls = type(layer)
    if cls.__name__ not in _LORA.get(cls.__module__, ()):
        return False
    if cls.__module__ == _TORCHAOS and "forward" in vars(cls):  # of a newer PEFT
        return False
    active = _active(layer)
    parts = [part for name in active for part in (layer.lora_A[name], layer.lora_B[name])]
    variants = getattr(layer, "lora_variant", {})
    casts = getattr(layer, "cast_input_dtype_enabled", True)
    return casts and all(type(part) in _PLAIN for part in parts) and not any(name in variants for name in active)


@dataclass
class AdapterScales:
    """How strongly each adapter counts in each layer, in one tensor that graphs read.

    Attributes:
        scalings: the attributes of PEFT's layer and the adapter's name, for each layer and adapter. AdapterScales are
            tensors after `enable_lora_hotswap`.
        layers: that read slices of `values`, each with how many adapters it has.
    """

    scalings: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    layers: list[tuple[LowRankLayer, int]] = field(default_factory=list)
    values: torch.Tensor | None = None
    _synced: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sync(self) -> None:
        """Have graphs read what PEFT's layers have now, on the device where the model is."""
        now = [layer["scaling"][name] for layer, name in self.scalings]
        if not now:
            return
        with self._lock:
            device = self.layers[0][0].weight.device
            moved = self.values is None or self.values.device != device
            tensors = any(isinstance(value, torch.Tensor) for value in now)  # which may change in place
            if not moved and not tensors and now == self._synced:
                return
            with torch.inference_mode(False), torch.no_grad():  # nobody may change an inference tensor later
                if tensors:
                    scales = torch.stack([torch.as_tensor(one, dtype=torch.float32, device=device) for one in now])
                else:
                    scales = torch.tensor(now, device=device)
                if moved:
                    self._place(device)
                assert self.values is not None
                self.values[torch.tensor([*chain(*self._slices())], device=device)] = scales
            self._synced = now

    def _slices(self) -> list[range]:
        """Where in `values` each layer's stand: they begin where compiled code expects a tensor to."""
        slices: list[range] = []
        start = 0
        for _, count in self.layers:
            slices.append(range(start, start + count))
            start += -(-count // _ALIGNED) * _ALIGNED
        return slices

    def _place(self, device: torch.device) -> None:
        slices = self._slices()
        self.values = torch.zeros(slices[-1].stop, device=device)
        for (layer, _), one in zip(self.layers, slices, strict=True):
            layer.scales = self.values[one.start : one.stop]


def as_compiled(module: torch.nn.Module) -> tuple[torch.nn.Module, AdapterScales]:
    """The module with layers that graphs know in the place of adapter layers. It shares all weights."""
    strengths = AdapterScales()

    def low_rank(layer: Any) -> torch.nn.Module:
        base: torch.nn.Module = getattr(layer, _INNER)
        active = _active(layer)
        if not active:
            return base
        pairs = [(layer.lora_A[name], layer.lora_B[name]) for name in active]
        made = LowRankLayer(base, pairs, torch.zeros(len(active)))
        strengths.layers.append((made, len(active)))
        strengths.scalings += [(vars(layer), name) for name in active]
        return made

    made = _replaced(module, low_rank)
    strengths.sync()
    return made, strengths


def plain(module: torch.nn.Module) -> torch.nn.Module:
    """What computes a module's sizes: the layer inside of adapters, or the module itself."""
    return getattr(module, _INNER) if _is_adapter(module) else module


def own_weights(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """The weights of a module without those of adapters."""
    bare = plain(module)
    yield from bare.parameters(recurse=False)
    for child in bare.children():
        yield from own_weights(child)


def _replaced(module: torch.nn.Module, replacement: Callable[[Any], torch.nn.Module]) -> torch.nn.Module:
    if _is_adapter(module):
        return replacement(module)
    if first_of(module) is None:
        return module
    plain: torch.nn.Module = object.__new__(type(module))
    object.__setattr__(plain, "__dict__", dict(vars(module)))
    module_tables = tables(module)
    children = {
        name: None if child is None else _replaced(child, replacement) for name, child in module_tables.children.items()
    }
    set_tables(plain, Tables(module_tables.parameters, module_tables.buffers, children))
    return plain
