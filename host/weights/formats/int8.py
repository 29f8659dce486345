"""int8 with one scale for the whole weight or one for each row, the second with rotated values, too ("convrot").

The product is comfy-kitchen's own operation, which quantises each row of the input, rotates it where the weight is
rotated, and chooses a kernel by the device when it is called: the same one as in an eager call.
"""

from __future__ import annotations

from typing import Any

import torch

from ..format import CODES, PlainLinear


class Int8Linear(PlainLinear):
    """The input is quantised by the operation, also where the host asks for full precision."""

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.full_precision and x.dtype != self.stored:
            return torch.nn.functional.linear(x, self.dequantised(x.dtype), bias)
        return self._multiplied(x, bias)

    def activated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """Return the layer's result for an activation of its input, which the operation computes on the way.

        Args:
            activation: by comfy-kitchen's name, e.g. `swiglu`, of twice as many values as the layer takes.
        """
        from comfy.ops import INPUT_ACT_EAGER

        bias = None if self.bias is None else self.bias.to(x.dtype)
        if x.dtype != self.stored:
            return torch.nn.functional.linear(INPUT_ACT_EAGER[activation](x), self.dequantised(x.dtype), bias)
        return self._multiplied(x, bias, activation)

    def _multiplied(self, x: torch.Tensor, bias: torch.Tensor | None, *activation: str) -> torch.Tensor:
        product: torch.Tensor = torch.ops.comfy_kitchen.int8_linear(
            x.contiguous(),
            self.weight._qdata,
            self.weight._params.scale,
            bias,
            CODES[x.dtype],
            bool(self.params.convrot),
            self.params.convrot_groupsize,
            *activation,
        )
        return product

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        kitchen: Any = torch.ops.comfy_kitchen
        qdata, scale, code = self.weight._qdata, self.weight._params.scale, CODES[dtype]
        weight: torch.Tensor
        if self.params.convrot:
            weight = kitchen.dequantize_int8_convrot_weight_dtype(qdata, scale, self.params.convrot_groupsize, code)
        else:
            weight = kitchen.dequantize_int8_simple_dtype(qdata, scale, code)
        return weight
