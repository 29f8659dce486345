"""mxfp8: float8 with a power of two for each 32 values of a row."""

from __future__ import annotations

from typing import Any

import torch

from ..format import PlainLinear, WeightFormat
from .block_scaled import BlockScaledLinear


class MXFP8Linear(BlockScaledLinear):
    def padded(self, code: int) -> torch.Tensor:
        kitchen: Any = torch.ops.comfy_kitchen
        weight: torch.Tensor = kitchen.dequantize_mxfp8(self.weight._qdata, self.weight._params.scale, code)
        return weight


class MXFP8(WeightFormat):
    name = "mxfp8"
    layouts = frozenset({"TensorCoreMXFP8Layout"})

    def plain(self, layer: Any) -> PlainLinear:
        return MXFP8Linear(layer)
