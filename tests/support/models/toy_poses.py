"""A small diffusion transformer that calls its blocks by methods of theirs, as Wan Animate 2 does.

A branch over poses runs beside the one that is sampled and gives it keys and values. A later call takes what the branch
had from a cache. The number of frames is one that the code counts by, and all blocks write into the same buffer.
"""

from __future__ import annotations

from typing import Any

import torch

from . import toy_blocks
from .toy_blocks import block_settings, prepare, rules

__all__ = ["Block", "Client", "Model", "block_settings", "call", "model", "prepare", "rules"]


class Attention(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def kv(self, x: Any) -> Any:
        return self.qkv(x).chunk(3, -1)[1:]


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        )

    def _rest(self, x: Any, found: Any) -> Any:
        x = x + self.attention.out(found)
        return x + self.mlp(x)

    def pose(self, x: Any, scale: Any = 1.0, transformer_options: Any = {}) -> Any:  # noqa: B006
        q, k, v = self.attention.qkv(x * scale).chunk(3, -1)
        return self._rest(x, torch.nn.functional.scaled_dot_product_attention(q, k, v)), k, v

    def kept(self, x: Any) -> Any:
        k, v = self.attention.kv(x)
        return k.sin(), v.cos() + k.mean(1, True)

    def forward(self, x: Any, frames: Any, each: Any, buffer: Any, transformer_options: Any = {}) -> Any:  # noqa: B006
        """Without poses: as with those of `x` itself, by another method of the block."""
        _, k, v = self.pose(x, transformer_options=transformer_options)
        return self.sampled(x, k, v, frames, each, buffer, transformer_options=transformer_options)

    def sampled(
        self,
        x: Any,
        k: Any,
        v: Any,
        frames: Any,
        each: Any,
        buffer: Any,
        transformer_options: Any = {},  # noqa: B006
    ) -> Any:
        q = self.attention.qkv(x).chunk(3, -1)[0]
        for frame in range(frames):
            some = slice(frame * each, (frame + 1) * each)
            buffer[:, some] = torch.nn.functional.scaled_dot_product_attention(q[:, some], k[:, some], v[:, some])
        return self._rest(x, buffer)


class Model(torch.nn.Module):
    """Latents [B,C,F,H,W] and poses [B,T,W] -> [B,C,F,H,W].

    Attributes:
        posed: whether there are poses.
        cache: what the branch of poses had in each block; None: it is not kept.
    """

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(4, width)
        self.blocks = torch.nn.ModuleList([Block(width) for _ in range(depth)])
        self.leave = torch.nn.Linear(width, 4)
        self.posed = True
        self.cache: dict[tuple[int, ...], list[torch.Tensor]] | None = None
        self.buffers_seen: list[torch.Tensor] = []

    def forward(self, x: Any, text: Any, transformer_options: Any) -> Any:
        batch, _, frames, height, width = x.shape
        latent = self.enter(x.flatten(2).transpose(1, 2))
        pose = latent * 0.5 + text.mean(1, True)
        buffer = torch.zeros_like(latent)
        kept = None if self.cache is None else self.cache.get((*x.shape,))
        seen: list[torch.Tensor] = []
        for number, block in enumerate(self.blocks):
            if not self.posed:
                latent = block(latent, frames, height * width, buffer, transformer_options=transformer_options)
                continue
            if kept is not None:
                k, v = block.kept(kept[number])
            else:
                seen.append(pose)
                pose, k, v = block.pose(pose, scale=0.5, transformer_options=transformer_options)
            latent = block.sampled(
                latent, k, v, frames, height * width, buffer, transformer_options=transformer_options
            )
        if self.cache is not None and seen:
            self.cache[(*x.shape,)] = seen
        self.buffers_seen.append(buffer)
        return self.leave(latent).transpose(1, 2).reshape(batch, 4, frames, height, width)


def model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model().eval().requires_grad_(False)


def call(batch: int, frames: int, height: int, width: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * height + tokens)
    x = torch.randn(batch, 4, frames, height, width, generator=generator)
    return x, torch.randn(batch, tokens, 16, generator=generator)


class Client(toy_blocks.Client):
    """Who calls the toy."""
