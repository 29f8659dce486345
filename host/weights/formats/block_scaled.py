"""Formats with a scale for each block of values of a row: mxfp8 and nvfp4, on devices that cannot multiply them.

There the host dequantises the weight at each use. Where the device multiplies such values (NVIDIA's Blackwell), the
host quantises the input, too, and no graph does that.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from ..format import CODES, PlainLinear, WeightFormat


class BlockScaledLinear(PlainLinear):
    """The weight is dequantised by comfy-kitchen's own operation, in memory that is padded to whole blocks."""

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.dequantised(x.dtype), bias)

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        rows, columns = self.params.orig_shape
        return self.padded(CODES[dtype])[:rows, :columns]

    @abstractmethod
    def padded(self, code: int) -> torch.Tensor:
        """All of the weight in memory, in the dtype of a code."""


class BlockScaled(WeightFormat):
    """A format of this kind."""

    def serves(self, layer: Any) -> bool:
        return super().serves(layer) and bool(layer._full_precision_mm)
