"""Which of ComfyUI's modules are compiled, and what their calls look like: one module per family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...common import reasons
from ...common.reasons import Reason
from .. import contract
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


def family_of(module: Any, among: Sequence[Family], name: str = "") -> Family | Reason:
    """The family that a module belongs to, or why none compiles it. `name`: the module's for users."""
    lacking = [contract.refusal(family.feature, family.uses) for family in among]  # first: their classes may be gone
    for family, lacks in zip(among, lacking, strict=True):
        if lacks is None and family.serves(module):
            return family
    supported = ", ".join(family.supported for family in among)
    first = next((lacks for lacks in lacking if lacks is not None), None)
    return first or reasons.NotCompilable(name or type(module).__name__, supported)
