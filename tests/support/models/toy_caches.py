"""A small diffusion transformer whose blocks are given an object that keeps what they compute, and a function that is
told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import toy_blocks
from .toy_blocks import block_settings, prepare, rules

__all__ = ["Client", "Kept", "Model", "block_settings", "call", "model", "prepare", "rules"]


class Kept:
    """What one block keeps for the next step.

    Attributes:
        keys: of the steps so far.
    """

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []

    def put(self, keys: torch.Tensor) -> None:
        """Keep keys [B,N,W]."""
        self.keys.append(keys)

    def mixed(self, keys: torch.Tensor, weight: float) -> torch.Tensor:
        """[B,N,W] -> [B,N,W]: with those of the first step."""
        return torch.lerp(keys, self.keys[0], weight)


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width, elementwise_affine=False)
        self.keys = torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: Any, vec: Any, kept: Any, tell: Any, transformer_options: Any = {}) -> Any:  # noqa: B006
        keys = self.keys(self.norm(x) * (1 + vec)).tanh()
        kept.put(keys)
        mixed = kept.mixed(keys * 2, weight=0.25)
        y = x + self.out(torch.nn.functional.gelu(mixed))
        tell(y * 3)  # whatever that returns
        return y


class Model(torch.nn.Module):
    """Latents [B,C,H,W] and text [B,T,W] -> [B,C,H,W].

    Attributes:
        kept: by sizes and block.
        told: the sums of what blocks told.
        tell: what they are given for it.
        instead: makes another object of each that blocks are given, where it is one.
    """

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(4, width)
        self.blocks = torch.nn.ModuleList([Block(width) for _ in range(depth)])
        self.leave = torch.nn.Linear(width, 4)
        self.kept: dict[tuple[int, ...], Kept] = {}
        self.told: list[float] = []
        self.tell: Callable[[Any], Any] = self._tell
        self.instead: Callable[[Kept], Any] | None = None

    def _tell(self, y: Any) -> Any:
        self.told.append(float(y.sum()))
        return y.mean(1)

    def forward(self, x: Any, text: Any, transformer_options: Any) -> Any:
        img = self.enter(x.flatten(2).transpose(1, 2))
        vec = text.mean(1, True).tanh()
        for number, block in enumerate(self.blocks):
            kept: Any = self.kept.setdefault((*x.shape, number), Kept())
            if self.instead is not None:
                kept = self.instead(kept)
            img = block(img, vec, kept, self.tell, transformer_options=transformer_options)
        return self.leave(img).transpose(1, 2).reshape(x.shape)


def model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model().eval().requires_grad_(False)


call = toy_blocks.call


class Client(toy_blocks.Client):
    """Who calls the toy."""
