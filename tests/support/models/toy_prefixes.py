"""A small diffusion transformer that calls its blocks with a function, as Qwen-Image 2.1 and HiDream O1 do.

The function attends for one call of one block: it holds the prefix's keys and values where these are known, and keeps
them in the model's cache where they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import toy_blocks
from .toy_blocks import block_settings, prepare, rules

__all__ = ["Client", "Model", "block_settings", "call", "model", "prepare", "rules"]

HEADS = 2


class Preferred:
    """What a block tells a function of itself."""

    gain = 1.0


def attended(q: Any, k: Any, v: Any, preferred: Any) -> Any:
    """[B,N,H,D] -> [B,N,H*D]."""
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return found.transpose(1, 2).flatten(2) * preferred.gain


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.preferred = Preferred()
        self.norm = torch.nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: Any, mod: Any, pe: Any, attn_fn: Any, prefix_len: Any, transformer_options: Any = {}) -> Any:  # noqa: B006
        (of_prefix, of_rest), gate = mod
        scaled = self.norm(x) * (1 + of_rest)
        if prefix_len:
            scaled[:, :prefix_len] = self.norm(x[:, :prefix_len]) * (1 + of_prefix)
        q, k, v = self.qkv(scaled).unflatten(2, (3, HEADS, -1)).unbind(2)
        found = self.out(attn_fn(q + pe, k + pe, v, HEADS, preferred=self.preferred))
        x.addcmul_(found, gate)
        return x


class Model(torch.nn.Module):
    """Latents [B,C,H,W] and text [B,T,W] -> [B,C,H,W].

    Attributes:
        cache: by sizes and block, keys and values of the text, the same at all steps; None: it is not used.
        around: makes another function of each that blocks are called with, where it is one.
        around_inputs: makes other arguments of a block and its own, where it is one.
    """

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(4, width)
        self.blocks = torch.nn.ModuleList([Block(width) for _ in range(depth)])
        self.leave = torch.nn.Linear(width, 4)
        self.cache: dict[tuple[int, ...], dict[int, tuple[torch.Tensor, torch.Tensor]]] | None = {}
        self.around: Callable[[Any], Any] | None = None
        self.around_inputs: Callable[[Any, Any], Any] | None = None

    def forward(self, x: Any, text: Any, transformer_options: Any) -> Any:
        batch, _, height, width = x.shape
        img = self.enter(x.flatten(2).transpose(1, 2))
        mod = ((text.mean((0, 1), True).tanh(), img.mean(1, True).tanh()), img.mean(1, True).sigmoid())
        pe = torch.linspace(0, 1, text.shape[1] + img.shape[1]).to(img)[None, :, None, None]
        prefix = text.shape[1]
        cache = None if self.cache is None else self.cache.setdefault((*x.shape, *text.shape), {})
        if cache is not None and len(cache) == len(self.blocks):
            both, pe, prefix = img, pe[:, prefix:], 0
        else:
            both = torch.cat((text, img), dim=1)
        for number, block in enumerate(self.blocks):
            attend = self._attention(number, prefix, cache)
            if self.around is not None:
                attend = self.around(attend)
            args = (both, mod, pe, attend, prefix)
            if self.around_inputs is not None:
                args = self.around_inputs(block, args)
            both = block(*args, transformer_options=transformer_options)
        return self.leave(both[:, prefix:]).transpose(1, 2).reshape(batch, 4, height, width)

    @staticmethod
    def _attention(number: int, prefix: int, cache: Any) -> Any:
        if cache is not None and not prefix:
            kept = cache[number]

            def after(q: Any, k: Any, v: Any, heads: int, preferred: Any = None) -> Any:
                return attended(q, torch.cat((kept[0], k), 1), torch.cat((kept[1], v), 1), preferred)

            return after

        def whole(q: Any, k: Any, v: Any, heads: int, preferred: Any = None) -> Any:
            if cache is not None:
                cache[number] = (k[:, :prefix], v[:, :prefix])
            of_prefix = attended(q[:, :prefix], k[:, :prefix], v[:, :prefix], preferred)
            return torch.cat((of_prefix, attended(q[:, prefix:], k, v, preferred)), 1)

        return whole


def model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model().eval().requires_grad_(False)


call = toy_blocks.call


class Client(toy_blocks.Client):
    """Who calls the toy."""
