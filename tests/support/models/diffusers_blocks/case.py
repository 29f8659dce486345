"""Small models of diffusers' classes with repeated blocks, with random weights, and what they are called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

WIDTH = 24  # of prompts


@dataclass(frozen=True)
class Sizes:
    """Of one call: height and width in latent units."""

    batch: int = 2
    frames: int = 5
    height: int = 8
    width: int = 6
    tokens: int = 7


FIRST = Sizes()
OTHERS = (Sizes(1, 2, 4, 10, 12), Sizes(3, 1, 6, 6, 1), Sizes(1, 5, 16, 12, 77))
Call = Callable[[Sizes, "Noise"], dict[str, Any]]


class Noise:
    """Normal numbers of a call."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator)


@dataclass(frozen=True)
class Case:
    """One class.

    Attributes:
        config: of a small model.
        call: its arguments.
        blocks: how many blocks run in a call.
        eager: how many calls of blocks run eager in a call of each of the sizes, by the code of the reason.
    """

    name: str
    config: Mapping[str, Any] = field(repr=False)
    call: Call = field(repr=False)
    blocks: int = 2
    eager: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def calls(self) -> int:
        """How many calls of blocks graphs serve in a call of each of the sizes."""
        return self.blocks * (1 + len(OTHERS)) - sum(self.eager.values())

    def model(self, seed: int = 0) -> Any:
        """A model with seeded weights, none of them zero: blocks of new models would change nothing."""
        import diffusers
        from diffusers.models import transformers

        torch.manual_seed(seed)
        cls = getattr(diffusers, self.name, None) or getattr(transformers, self.name)
        made = cls(**self.config).eval().requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        for weight in made.parameters():
            stacked = weight.ndim == 3 and weight.shape[0] > 1  # of experts, which the class leaves unset
            if stacked or not weight.count_nonzero():
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
        return made

    def arguments(self, sizes: Sizes = FIRST) -> dict[str, Any]:
        """What the model is called with."""
        given = self.call(sizes, Noise(sizes.batch * sizes.height + sizes.tokens))
        return {**given, "return_dict": False}


def result_of(output: Any) -> torch.Tensor:
    """All tensors of a model's output, flat and joined."""
    if isinstance(output, torch.Tensor):
        return output.flatten()
    return torch.cat([result_of(one) for one in output if one is not None])


def steps(sizes: Sizes, value: float = 500.0) -> torch.Tensor:
    return torch.full((sizes.batch,), value)


def text(sizes: Sizes, noise: Noise, width: int = WIDTH) -> torch.Tensor:
    return noise(sizes.batch, sizes.tokens, width)


def mask(sizes: Sizes, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    """Of a prompt whose last third is padding, in the first element of the batch alone."""
    mask = torch.ones(sizes.batch, sizes.tokens, dtype=dtype)
    if sizes.tokens > 2:
        mask[0, -(sizes.tokens // 3) :] = 0
    return mask


def ids(height: int, width: int) -> torch.Tensor:
    """Of image tokens: [height * width, 3]."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], -1).reshape(-1, 3).float()


HUNYUAN = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_layers": 2,
    "num_refiner_layers": 2,
    "text_embed_dim": WIDTH,
    "rope_axes_dim": (4, 4, 8),
}
