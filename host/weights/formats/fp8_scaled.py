"""float8_e4m3fn ("fp8 scaled") and float8_e5m2, each with one scale for the whole weight."""

from __future__ import annotations

import torch

from ....common.torch_private import scaled_product
from ..format import PlainLinear


class Float8Linear(PlainLinear):
    """Where the device multiplies such values the input is quantised, too; elsewhere the weight is dequantised."""

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        linear = torch.nn.functional.linear
        if self.full_precision or x.ndim < 2:
            return linear(x, self.dequantised(x.dtype), bias)
        qdata, scale = self.weight._qdata, self.weight._params.scale
        input_scale = (
            torch.ones((), dtype=torch.float32, device=x.device) if self.input_scale is None else self.input_scale
        )
        input_scale = input_scale.reshape(()).float()
        flat = self._quantised(x.reshape(-1, x.shape[-1]), input_scale, qdata.dtype)
        if x.dtype == self.stored:
            product = scaled_product(flat, qdata.t(), input_scale, scale, bias, x.dtype)
        else:  # the host has cast the weight then, and with it all is dequantised
            product = linear(flat.to(x.dtype) * input_scale.to(x.dtype), self.dequantised(x.dtype), bias)
        return product.reshape(*x.shape[:-1], product.shape[-1])

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        weight: torch.Tensor = self.weight._qdata.to(dtype) * self.weight._params.scale.to(dtype)
        return weight

    def _quantised(self, x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        most = torch.finfo(dtype).max
        if self.input_scale is not None:
            # A graph is tried out with zeros for all weights.
            inverse = torch.where(scale == 0, torch.ones_like(scale), 1.0 / scale)
            x = x * inverse.to(x.dtype)
        return x.clamp(-most, most).to(dtype)
