"""A block in float32 whose quantised weights are dequantised: what eager and a graph are both rounded from."""

from __future__ import annotations

from typing import Any

import torch

from ...common.torch_private import tables
from ...compiler.exchange import ExactLinear, in_float32
from .quantised import is_quantised


def exact_block(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a block in float32, with weights of its own where they are not float32 already."""
    return in_float32(module, _exact_layer)


def _exact_layer(module: torch.nn.Module) -> torch.nn.Module | None:
    return ExactLinear(module, _dequantised) if is_quantised(tables(module).parameters.get("weight")) else None


def _dequantised(weight: Any) -> torch.Tensor:
    found: torch.Tensor = weight.to(dtype=torch.float32).dequantize()
    return found
