"""nvfp4: values of four bits with a float8 scale for each 16 of a row, and one scale for the whole weight."""

from __future__ import annotations

from typing import Any

import torch

from ..format import PlainLinear, WeightFormat
from .block_scaled import BlockScaledLinear


class NVFP4Linear(BlockScaledLinear):
    def padded(self, code: int) -> torch.Tensor:
        kitchen: Any = torch.ops.comfy_kitchen
        params = self.weight._params
        weight: torch.Tensor = kitchen.dequantize_nvfp4(
            self.weight._qdata, params.scale, params.block_scale, code, True
        )
        return weight


class NVFP4(WeightFormat):
    name = "nvfp4"
    layouts = frozenset({"TensorCoreNVFP4Layout"})

    def plain(self, layer: Any) -> PlainLinear:
        return NVFP4Linear(layer)
