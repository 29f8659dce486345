"""torchao's tensors, which hold plain ones and compute with them in Python.

In the compiling process a layer makes such a weight again of the plain tensors that the graph reads, so that the
product is torchao's.
"""

from __future__ import annotations

import functools
import sys
from importlib import metadata
from typing import Any

import torch
from typing_extensions import override

from ...compiler.composite_weights import PLAIN, WeightParts, class_name
from ...compiler.layer_swap import ComponentTensors
from .format import LibraryFormat

_LIBRARY = "torchao"
_NAMES = (  # in the order of such a class's arguments
    "tensor_data_names",
    "tensor_attribute_names",
    "optional_tensor_data_names",
    "optional_tensor_attribute_names",
)


def _is_ours(weight: Any) -> bool:
    """Whether a weight is of a class of torchao's that is made of plain tensors."""
    module = sys.modules.get(f"{_LIBRARY}.utils")  # nobody has such a weight before torchao is imported
    base = getattr(module, "TorchAOBaseTensor", None)
    if base is None or not isinstance(weight, base) or type(weight).__module__.partition(".")[0] != _LIBRARY:
        return False
    return all(hasattr(type(weight), name) for name in _NAMES[:2]) and all(
        type(getattr(weight, name)) in PLAIN for name in _tensors_of(weight)
    )


def _tensors_of(weight: Any) -> list[str]:
    names: list[str] = weight.__tensor_flatten__()[0]
    return names


@functools.cache
def _version() -> str:
    try:
        return f"{_LIBRARY} {metadata.version(_LIBRARY)}"
    except metadata.PackageNotFoundError:
        return _LIBRARY


class TorchAO(LibraryFormat):
    """Known by sizes of blocks, dtypes, how an input is quantised, and torchao's version."""

    @override
    def parts(self, weight: Any) -> WeightParts | None:
        if not _is_ours(weight):
            return None
        facts: list[Any] = [class_name(type(weight)), _version()]
        facts += [(name, repr(value)) for name, value in weight.__tensor_flatten__()[1].items()]
        if any(" at 0x" in fact[1] for fact in facts[2:]):  # no stable text
            return None
        return WeightParts({name: getattr(weight, name) for name in _tensors_of(weight)}, tuple(facts))

    @override
    def arguments(self, weight: Any) -> tuple[Any, ...]:
        return tuple(getattr(weight, name) for names in _NAMES for name in getattr(type(weight), names, ()))

    @override
    def serves(self, layer: torch.nn.Module) -> bool:
        return type(layer) is torch.nn.Linear

    @override
    def remade(self, layer: Any) -> torch.nn.Module:
        weight_parts = self.parts(layer.weight)
        assert weight_parts is not None
        return RemadeLinear(layer, weight_parts)

    @override
    def dequantised(self, weight: Any) -> torch.Tensor:
        values: torch.Tensor = weight.dequantize()
        return values.float()


class RemadeLinear(torch.nn.Module):
    """A Linear that makes its weight of plain tensors at each use."""

    def __init__(self, layer: Any, weight_parts: WeightParts) -> None:
        super().__init__()
        weight = layer.weight
        self.weight: Any = ComponentTensors(weight_parts.tensors)
        self.bias = layer.bias
        # Of single values: others have theirs, and to ask for it would be to read a tensor that no product needs.
        self._shapes = {name: one.shape if one.numel() == 1 else None for name, one in weight_parts.tensors.items()}
        self._made = type(weight), weight.__tensor_flatten__()[1], weight.shape, weight.stride()
        self.train(layer.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cls, attributes, shape, stride = self._made
        read = ((name, getattr(self.weight, name), size) for name, size in self._shapes.items())
        tensors = {name: tensor if size is None else tensor.reshape(size) for name, tensor, size in read}
        weight = cls.__tensor_unflatten__(tensors, attributes, shape, stride)
        return torch.nn.functional.linear(x, weight, self.bias)
