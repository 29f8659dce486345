"""A library's weights: what they consist of, and a layer that computes with that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from ...compiler.composite_weights import WeightParts


class LibraryFormat(ABC):
    """The weights of one library."""

    @abstractmethod
    def parts(self, weight: Any) -> WeightParts | None:
        """A weight, taken apart; None: it is none of these."""

    @abstractmethod
    def arguments(self, weight: Any) -> tuple[Any, ...]:
        """What the weight's class is called with to make such a weight again."""

    @abstractmethod
    def serves(self, layer: torch.nn.Module) -> bool:
        """Whether a layer with such a weight is one that `remade` knows."""

    @abstractmethod
    def remade(self, layer: Any) -> torch.nn.Module:
        """A layer that computes the same and reads plain tensors, by the names of the weight's parts. In the compiling
        process."""

    @abstractmethod
    def dequantised(self, weight: Any) -> torch.Tensor:
        """The weight in float32."""
