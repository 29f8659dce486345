"""Which modules of diffusers are compiled, and what their calls look like: one module per family."""

from __future__ import annotations

import torch

from . import unet, vae
from .family import Family, Inputs, Ranged, Shapes

FAMILIES: tuple[Family, ...] = (unet.Unet(), vae.DECODER, vae.ENCODER)

__all__ = ["FAMILIES", "Family", "Inputs", "Ranged", "Shapes", "family_of"]


def family_of(module: torch.nn.Module) -> Family | None:
    """The family that a module belongs to, or None: it is not compiled."""
    return next((family for family in FAMILIES if family.serves(module)), None)
