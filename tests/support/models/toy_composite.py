"""A module whose weights consist of values and a scale, as libraries of quantised weights have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from onegraph.compiler.composite_weights import Composites, Made, WeightParts


@dataclass(frozen=True)
class Params:
    scale: torch.Tensor
    group: int = 4


class Scaled(torch.Tensor):
    """Values times a scale."""

    @staticmethod
    def __new__(cls, qdata: torch.Tensor, params: Params) -> Scaled:
        made: Scaled = torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=torch.float32)  # type: ignore[attr-defined]
        return made

    def __init__(self, qdata: torch.Tensor, params: Params) -> None:
        self._qdata, self._params = qdata, params

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0]._qdata, args[0]._params)
        raise NotImplementedError(str(func))


def parts(weight: torch.Tensor) -> WeightParts | None:
    if not isinstance(weight, Scaled):
        return None
    tensors = {"_qdata": weight._qdata, "_params.scale": weight._params.scale}
    return WeightParts(tensors, ("scaled", weight._params.group))


def made(weight: torch.Tensor) -> Made | None:
    return (Scaled, (weight._qdata, weight._params)) if isinstance(weight, Scaled) else None


COMPOSITES = Composites(parts, made)


class Layer(torch.nn.Module):
    """A layer with such a weight [6, 4] and a bias."""

    def __init__(self, seed: int = 0, group: int = 4) -> None:
        super().__init__()
        torch.manual_seed(seed)
        qdata = torch.randint(-128, 127, (6, 4), dtype=torch.int8)
        self.weight = torch.nn.Parameter(Scaled(qdata, Params(torch.rand(1), group)), requires_grad=False)
        self.bias = torch.nn.Parameter(torch.randn(6), requires_grad=False)
