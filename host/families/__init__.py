"""Which of ComfyUI's modules are compiled, and what their calls look like: one module per family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...common import reasons
from ...common.reasons import Reason
from ..comfyui import contract
from . import controlnet, text_blocks, unet, unet_video, vae, vae_blocks, vae_hunyuan, vae_wan
from .family import HostFamily
from .vae import Half, VaeHalf

MODELS: list[HostFamily] = [
    unet.Unet(),
    unet_video.VideoUnet(),
]  # diffusion models, whose calls go through the host's chain of wrappers
CONTROLNETS: list[HostFamily] = [controlnet.ControlNet()]
DECODER, ENCODER = vae.Decoder(), vae.Encoder()
VAES: list[VaeHalf] = [
    DECODER,
    ENCODER,
    vae_hunyuan.HunyuanDecoder(),
    vae_hunyuan.HunyuanEncoder(),
    vae.TaesdDecoder(),
    vae.TaesdEncoder(),
    vae_wan.Wan21Decoder(),
    vae_wan.Wan21Encoder(),
    vae_wan.Wan22Decoder(),
    vae_wan.Wan22Encoder(),
]

text_blocks.register()
vae_blocks.register()

__all__ = [
    "CONTROLNETS",
    "DECODER",
    "ENCODER",
    "MODELS",
    "VAES",
    "Half",
    "HostFamily",
    "VaeHalf",
    "family_of",
    "half_of",
    "register",
    "registered",
]


def register(family: HostFamily) -> None:
    """Have a further kind of diffusion models compiled. Its module is imported in compiling processes, too."""
    MODELS.append(family)


def registered() -> list[HostFamily]:
    """All families."""
    return [*MODELS, *CONTROLNETS, *VAES]


def family_of(module: Any, among: Sequence[HostFamily], name: str = "") -> HostFamily | Reason:
    """The family that a module belongs to, or why none compiles it. `name`: the module's for users."""
    lacking = [contract.refusal(family.feature, family.uses) for family in among]  # first: their classes may be gone
    for family, lacks in zip(among, lacking, strict=True):
        if lacks is None and family.serves(module):
            return family
    supported = ", ".join(family.supported for family in among)
    first = next((lacks for lacks in lacking if lacks is not None), None)
    return first or reasons.NotCompilable(name or type(module).__name__, supported)


def half_of(module: Any, half: Half) -> VaeHalf | Reason:
    """The family of one half of a VAE, which may refuse it all the same, or why there is none."""
    families = [family for family in VAES if family.half == half]
    lacking = [contract.refusal(family.feature, family.uses) for family in families]  # first: their classes may be gone
    candidates = [one for one, lacks in zip(families, lacking, strict=True) if lacks is None and one.knows(module)]
    if candidates:
        return next((family for family in candidates if family.serves(module)), candidates[0])
    first = next((lacks for lacks in lacking if lacks is not None), None)
    return first or reasons.NotACompilableVae(type(module).__name__)
