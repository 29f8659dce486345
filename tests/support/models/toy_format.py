"""What one more format of quantised weights costs: this file. int8 with a scale for each row.

Importing it registers the format, in the processes that compile it, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from onegraph.compiler.composite_weights import WeightParts, class_name
from onegraph.compiler.layer_swap import ComponentTensors
from onegraph.pipelines import weight_formats
from onegraph.pipelines.weight_formats import LibraryFormat


class Int8Weight(torch.Tensor):
    """A weight [out, in] as a library has it: `codes` [out, in] of int8, `scale` [out, 1]. It only dequantises."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype, device=codes.device)
        made.codes, made.scale = codes, scale
        return made

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None: ...

    def plain(self) -> torch.Tensor:
        return self.codes.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        return func(*tree_map_only(cls, cls.plain, args), **tree_map_only(cls, cls.plain, kwargs or {}))


def quantise(module: torch.nn.Module) -> torch.nn.Module:
    """Give the Linears of a module such weights."""
    for layer in module.modules():
        if type(layer) is torch.nn.Linear:
            scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
            codes = (layer.weight.detach() / scale).round().to(torch.int8)
            layer.weight = torch.nn.Parameter(Int8Weight(codes, scale), requires_grad=False)
    return module


def dequantise(module: torch.nn.Module) -> torch.nn.Module:
    """Give the Linears of a quantised module plain weights of the same values."""
    for layer in module.modules():
        if type(layer) is torch.nn.Linear and type(layer.weight) is Int8Weight:
            layer.weight = torch.nn.Parameter(layer.weight.plain(), requires_grad=False)
    return module


class Int8(LibraryFormat):
    def parts(self, weight: Any) -> WeightParts | None:
        if type(weight) is not Int8Weight:
            return None
        return WeightParts({"codes": weight.codes, "scale": weight.scale}, (class_name(Int8Weight),))

    def arguments(self, weight: Any) -> tuple[Any, ...]:
        return weight.codes, weight.scale

    def serves(self, layer: torch.nn.Module) -> bool:
        return type(layer) is torch.nn.Linear

    def remade(self, layer: Any) -> torch.nn.Module:
        return Int8Linear(layer)

    def dequantised(self, weight: Any) -> torch.Tensor:
        values: torch.Tensor = weight.plain()
        return values.float()


class Int8Linear(torch.nn.Module):
    """The layer that graphs are captured from: it reads plain tensors."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight: Any = ComponentTensors({"codes": layer.weight.codes, "scale": layer.weight.scale})
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.codes.to(x.dtype) * self.weight.scale
        return torch.nn.functional.linear(x, weight, self.bias)


weight_formats.register(Int8())
