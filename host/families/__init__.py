"""Which of ComfyUI's modules are compiled, and what their calls look like: one module per family."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import controlnet, unet, vae
from .family import Family

MODELS: list[Family] = [unet.Unet()]  # diffusion models, whose calls go through the host's chain of wrappers
CONTROLNETS: list[Family] = [controlnet.ControlNet()]
DECODER, ENCODER = vae.Decoder(), vae.Encoder()

__all__ = ["CONTROLNETS", "DECODER", "ENCODER", "MODELS", "Family", "family_of", "known", "register"]


def register(family: Family) -> None:
    """Have a further kind of diffusion models compiled. Its module is imported in compiling processes, too."""
    MODELS.append(family)


def known() -> list[Family]:
    """All families."""
    return [*MODELS, *CONTROLNETS, DECODER, ENCODER]


def family_of(module: Any, among: Iterable[Family]) -> Family | None:
    """The family that a module belongs to, or None: it is not compiled."""
    return next((family for family in among if family.serves(module)), None)
