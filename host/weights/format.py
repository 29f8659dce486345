"""A format of quantised weights: what a graph of it computes, written with plain tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...compiler.layer_swap import ComponentTensors
from .quantised import parts

CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # of dtypes, to comfy-kitchen's operations


class PlainLinear(torch.nn.Module, ABC):
    """A quantised Linear whose weight is plain tensors. It computes what the host's own layer does.

    Args:
        layer: the host's, with a quantised weight.

    Attributes:
        full_precision: whether the host multiplies by the dequantised weight.
        stored: dtype that the weight has to the host.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight = layer.weight
        weight_parts = parts(weight)
        assert weight_parts is not None
        self.weight: Any = ComponentTensors(weight_parts.tensors)
        self.bias = layer.bias
        self.input_scale: torch.Tensor | None = getattr(layer, "input_scale", None)
        self.pre_quant_scale: torch.Tensor | None = getattr(layer, "pre_quant_scale", None)
        self.full_precision = bool(layer._full_precision_mm)
        self.stored: torch.dtype = weight.dtype
        self.params = weight._params
        self.train(layer.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.pre_quant_scale is not None:
            x = x * self.pre_quant_scale.to(x.dtype)
        return self.product(x, None if self.bias is None else self.bias.to(x.dtype))

    @abstractmethod
    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return what the layer gives for an input of any number of dimensions."""

    @abstractmethod
    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight in a plain dtype, as the host has it where no product of quantised values serves."""


@dataclass(frozen=True)
class QuantisedFormat:
    """One format.

    Attributes:
        layouts: names of comfy-kitchen's layouts that it may have.
        plain: makes a layer of this format with plain weights. In the compiling process.
    """

    layouts: frozenset[str]
    plain: Callable[[Any], PlainLinear]

    def serves(self, layer: Any) -> bool:
        """Tell whether a layer that the host says to be of this format is one that `plain` knows."""
        weight = layer.weight
        return weight._layout_cls in self.layouts and not getattr(weight._params, "transposed", False)
