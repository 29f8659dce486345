"""A small transformer whose blocks hold an object, which is no module, and call it."""

from __future__ import annotations

from typing import Any

import torch

from .toy_blocks import Client, block_settings, call, prepare, rules

__all__ = ["Client", "Model", "Scaling", "block_settings", "call", "model", "prepare", "rules", "scalings"]


class Scaling:
    """What activation functions and attention processors are in some models."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def scalings() -> dict[float, Any]:
    """Functions of one name, as models make them where a choice decides."""
    return {1.0: lambda x: x, 2.0: lambda x: x * 2.0}


class Block(torch.nn.Module):
    def __init__(self, width: int, scaling: Any) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.scaling = scaling

    def forward(self, x: Any, transformer_options: Any = {}) -> Any:  # noqa: B006
        return x + self.second(torch.nn.functional.gelu(self.scaling(self.first(x))))


class Model(torch.nn.Module):
    """Latents [B,C,H,W] -> [B,C,H,W]."""

    def __init__(self, scaling: Any, width: int = 16) -> None:
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(4, width), torch.nn.Linear(width, 4)
        self.blocks = torch.nn.ModuleList([Block(width, scaling) for _ in range(3)])

    def forward(self, x: Any, text: Any, transformer_options: Any) -> Any:
        found = self.enter(x.flatten(2).transpose(1, 2))
        for block in self.blocks:
            found = block(found, transformer_options=transformer_options)
        return self.leave(found).transpose(1, 2).reshape(x.shape)


def model(scaling: Any) -> Model:
    torch.manual_seed(0)
    return Model(scaling).eval().requires_grad_(False)
