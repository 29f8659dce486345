"""A block in float32 whose quantised weights are dequantised: what eager and a graph are both rounded from."""

from __future__ import annotations

from typing import Any

import torch

from ...common.torch_private import Tables, set_tables, tables
from .quantised import is_quantised


class ExactLinear(torch.nn.Module):
    """A Linear in float32 that quantises nothing. It dequantises at each use: a whole block so takes four times its own
    memory."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self._quantised = layer.weight.detach()
        self.bias = _float(layer.bias)
        self.pre_quant_scale = _float(getattr(layer, "pre_quant_scale", None))

    @property
    def weight(self) -> torch.Tensor:
        """The dequantised weight: a model's own code may read it."""
        found: torch.Tensor = self._quantised.to(dtype=torch.float32).dequantize()
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.pre_quant_scale is not None:
            x = x * self.pre_quant_scale
        return torch.nn.functional.linear(x, self.weight, self.bias)


def exact_block(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a block in float32, with weights of its own where they are not float32 already."""
    if is_quantised(tables(module).parameters.get("weight")):
        return ExactLinear(module)
    made: torch.nn.Module = object.__new__(type(module))
    vars(made).update(vars(module))
    parameters, buffers, children = tables(module)
    set_tables(
        made,
        Tables(
            {name: _float(one) for name, one in parameters.items()},
            {name: _float(one) for name, one in buffers.items()},
            {name: None if one is None else exact_block(one) for name, one in children.items()},
        ),
    )
    return made


def _float(tensor: Any) -> Any:
    """A tensor or parameter in float32; whole numbers and complex ones as they are."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype in (torch.float32, torch.float64):
        return tensor
    made = tensor.detach().float()
    return torch.nn.Parameter(made, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else made
