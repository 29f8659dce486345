"""A small model whose blocks read a memory of some length, which no argument of the model tells."""

from __future__ import annotations

from typing import Any

import torch

from onegraph.compiler.blocks.capture import Settings
from onegraph.compiler.code.fingerprint import Rules

from . import toy_blocks
from .toy_blocks import prepare as prepare

WIDTH = 16
DEPTH = 3


class Block(torch.nn.Module):
    """Tokens [B,N,W] attend to those of a memory [B,M,W], and are scaled by rows [R,W]."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.both = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, memory: Any, rows: Any, transformer_options: Any = {}) -> Any:  # noqa: B006
        key, value = self.both(memory).chunk(2, dim=-1)
        attended = torch.nn.functional.scaled_dot_product_attention(self.query(x), key, value)
        return x + self.out(attended) * torch.tanh(rows.sum(0)) + rows.mean()


class Model(torch.nn.Module):
    """Latents [B,C,H,W] -> [B,C,H,W].

    Attributes:
        length: of the memory.
        rows: how many the blocks are given.
    """

    def __init__(self) -> None:
        super().__init__()
        self.length, self.rows = 6, 2
        self.enter, self.leave = torch.nn.Linear(4, WIDTH), torch.nn.Linear(WIDTH, 4)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(DEPTH)])

    def forward(self, x: Any, transformer_options: Any) -> Any:
        batch, _, height, width = x.shape
        tokens = self.enter(x.flatten(2).transpose(1, 2))
        memory = torch.linspace(-1, 1, self.length)[None, :, None] * tokens[:, :1]
        rows = torch.linspace(0.5, 1, self.rows)[:, None].expand(self.rows, WIDTH).contiguous()
        for block in self.blocks:
            tokens = block(tokens, memory, rows, transformer_options=transformer_options)
        return self.leave(tokens).transpose(1, 2).reshape(batch, 4, height, width)


def model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model().eval().requires_grad_(False)


def rules() -> Rules:
    return Rules(intercepted=lambda module: frozenset({"forward"}))


def block_settings() -> Settings:
    return Settings(fewest=4)


class Client(toy_blocks.Client):
    """Who calls the toy."""

    architecture = "toy with a memory"
