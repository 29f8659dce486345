"""Which modules of diffusers are compiled, and what their calls look like: one module per family."""

from __future__ import annotations

import torch

from . import blocks, controlnet, unet, vae, video
from .family import PipeFamily

FAMILIES: list[PipeFamily] = [
    unet.Unet(),
    video.VideoUnet(),
    controlnet.ControlNet(),
    vae.Decoder(),
    vae.Encoder(),
    video.VideoDecoder(),
]
_BLOCKS = blocks.Blocks()  # of what no family serves as a whole

__all__ = ["FAMILIES", "PipeFamily", "family_of", "register"]


def register(family: PipeFamily) -> None:
    """Have a further kind of modules compiled. The module that defines it is imported in compiling processes, too."""
    FAMILIES.append(family)


def family_of(module: torch.nn.Module) -> PipeFamily | None:
    """The family that a module belongs to, or None: it is not compiled."""
    candidate = next((family for family in FAMILIES if family.serves(module)), None)
    return candidate or (_BLOCKS if _BLOCKS.serves(module) else None)
