"""Formats with a scale for each block of values of a row: mxfp8 and nvfp4.

Where the device multiplies such values (Blackwell) the host quantises the input, too, and comfy-kitchen chooses
a product when it is called. Here that is an operation, so that a graph calls the same functions as an eager call does.
On other devices the host dequantises the weight at each use.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from ..format import CODES, PlainLinear
from ..operations import operation

_DTYPES = {code: dtype for dtype, code in CODES.items()}


def _product(
    x: torch.Tensor,
    qdata: torch.Tensor,
    scale: torch.Tensor,
    block_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    input_scale: torch.Tensor | None,
    layout: str,
    rows: int,
    stored: int,
) -> torch.Tensor:
    """Multiply `x` [n, columns] by a weight [rows, columns] of a layout whose values have a dtype by a code."""
    from comfy_kitchen import float_utils
    from comfy_kitchen.tensor import QuantizedTensor, get_layout_class

    blocks = {} if block_scale is None else {"block_scale": block_scale}
    shape = (rows, x.shape[-1])
    params = get_layout_class(layout).Params(scale=scale, orig_dtype=_DTYPES[stored], orig_shape=shape, **blocks)
    weight: Any = QuantizedTensor(qdata, layout, params)
    if x.dtype != _DTYPES[stored] or x.device.type == "cpu":  # where a graph is tried out, and nothing multiplies them
        weight = weight.to(dtype=x.dtype).dequantize()
    if input_scale is None and block_scale is not None:  # the layout's own, of which nothing is finite for zeros
        most = torch.amax(x.abs()) / (float_utils.F8_E4M3_MAX * float_utils.F4_E2M1_MAX)
        input_scale = torch.where(most == 0, torch.ones_like(most), most)
    activation = QuantizedTensor.from_float(x, layout, scale=input_scale)
    product: torch.Tensor = torch.nn.functional.linear(activation, weight, bias)
    return product.contiguous()  # of a padded product it is a view


def _shape_of_product(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    *_, rows, _ = rest
    return x.new_empty(x.shape[0], rows)


_LINEAR = operation("block_scaled_linear", _product, _shape_of_product)


class BlockScaledLinear(PlainLinear):
    """Where the host asks for full precision the weight is dequantised by comfy-kitchen's own operation, in memory that
    is padded to whole blocks."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.layout: str = layer.weight._layout_cls

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.full_precision or x.ndim < 2:
            return torch.nn.functional.linear(x, self.dequantised(x.dtype), bias)
        input_scale = self.input_scale
        if input_scale is not None:  # a graph is tried out with zeros for all weights
            input_scale = torch.where(input_scale == 0, torch.ones_like(input_scale), input_scale)
        product: torch.Tensor = _LINEAR(
            x.reshape(-1, x.shape[-1]),
            self.weight._qdata,
            self.weight._params.scale,
            getattr(self.weight._params, "block_scale", None),
            bias,
            input_scale,
            self.layout,
            self.params.orig_shape[0],
            CODES[self.stored],
        )
        return product.reshape(*x.shape[:-1], product.shape[-1])

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        rows, columns = self.params.orig_shape
        return self.padded(CODES[dtype])[:rows, :columns]

    @abstractmethod
    def padded(self, code: int) -> torch.Tensor:
        """Return all of the weight in memory, in the dtype of a code."""


class MXFP8Linear(BlockScaledLinear):
    """mxfp8: float8 with a power of two for each 32 values of a row."""

    def padded(self, code: int) -> torch.Tensor:
        kitchen: Any = torch.ops.comfy_kitchen
        weight: torch.Tensor = kitchen.dequantize_mxfp8(self.weight._qdata, self.weight._params.scale, code)
        return weight


class NVFP4Linear(BlockScaledLinear):
    """nvfp4: values of four bits with a float8 scale for each 16 of a row, and one scale for the whole weight."""

    def padded(self, code: int) -> torch.Tensor:
        kitchen: Any = torch.ops.comfy_kitchen
        params = self.weight._params
        weight: torch.Tensor = kitchen.dequantize_nvfp4(
            self.weight._qdata, params.scale, params.block_scale, code, True
        )
        return weight
