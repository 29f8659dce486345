"""Rotated values of four bits with a scale for each group ("convrot_w4a4"), multiplied as int4 or as int8 (w4a8).

comfy-kitchen's product is a plain function that chooses a kernel by the device. Here it is an operation, so that a
graph calls the same function as an eager call does.
"""

from __future__ import annotations

from typing import Any

import torch

from ..format import PlainLinear
from ..operations import operation


def _product(
    x: torch.Tensor,
    qdata: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    rotated: int,
    group: int,
    dtype: str,
) -> torch.Tensor:
    from comfy_kitchen.tensor import convrot_w4a4_linear

    product: torch.Tensor = convrot_w4a4_linear(
        x, qdata, scales, bias=bias, convrot_groupsize=rotated, quant_group_size=group, linear_dtype=dtype
    )
    return product


def _shape_of_product(x: torch.Tensor, qdata: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], qdata.shape[0])


_LINEAR = operation("convrot_w4a4_linear", _product, _shape_of_product)


class ConvrotLinear(PlainLinear):
    """The input is quantised by the operation, also where the host asks for full precision."""

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.full_precision and x.dtype != self.stored:
            return torch.nn.functional.linear(x, self.dequantised(x.dtype), bias)
        product: torch.Tensor = _LINEAR(
            x,
            self.weight._qdata,
            self.weight._params.scale,
            bias,
            self.params.convrot_groupsize,
            self.params.quant_group_size,
            self.params.linear_dtype,
        )
        return product

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        from comfy_kitchen.tensor import dequantize_convrot_w4a4_weight

        weight: torch.Tensor = dequantize_convrot_w4a4_weight(
            self.weight._qdata,
            self.weight._params.scale,
            self.params.convrot_groupsize,
            self.params.quant_group_size,
            dtype,
        )
        return weight
