"""Which of ComfyUI's modules are compiled, and what their calls look like: one module per family."""

from __future__ import annotations

from typing import Any

from . import controlnet, unet, vae
from .family import Family

MODELS: tuple[Family, ...] = (unet.Unet(),)  # diffusion models, whose calls go through the host's chain of wrappers
CONTROLNETS: tuple[Family, ...] = (controlnet.ControlNet(),)
DECODER, ENCODER = vae.Decoder(), vae.Encoder()
FAMILIES: tuple[Family, ...] = (*MODELS, *CONTROLNETS, DECODER, ENCODER)

__all__ = ["CONTROLNETS", "DECODER", "ENCODER", "FAMILIES", "MODELS", "Family", "family_of"]


def family_of(module: Any, among: tuple[Family, ...]) -> Family | None:
    """The family that a module belongs to, or None: it is not compiled."""
    return next((family for family in among if family.serves(module)), None)
