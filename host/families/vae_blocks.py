"""The blocks of ComfyUI's video VAEs, which keep frames of one chunk for the next each in its own way, and of audio."""

from __future__ import annotations

import torch

from ...compiler.blocks.repeated import repeated_blocks
from ...signature import views
from . import vae_seedvr

# The VAEs whose videos or audio were tested so. What others keep between chunks is not known, and other audio VAEs have
# hardly two blocks of one structure.
_VAES = {  # and sides of their latents
    "comfy.ldm.wan.vae:WanVAE": 3,
    "comfy.ldm.wan.vae2_2:WanVAE": 3,
    "comfy.ldm.models.autoencoder:AutoencodingEngine": 3,
    "comfy.ldm.models.autoencoder:AutoencoderKL": 3,
    "comfy.ldm.lightricks.vae.causal_video_autoencoder:VideoVAE": 3,
    "comfy.ldm.cosmos.vae:CausalContinuousVideoTokenizer": 3,
    "comfy.ldm.minimax.vae:MiniMaxH3VideoVAE": 3,
    "comfy.ldm.seedvr.vae:VideoAutoencoderKLWrapper": 3,
    "comfy.ldm.audio.vae_sa3:SA3AudioVAE": 1,
}


def register() -> None:
    """Have these blocks compiled."""
    for module in ("comfy.ldm.wan.vae", "comfy.ldm.wan.vae2_2"):  # two convolutions of three frames each
        views.register(f"{module}:ResidualBlock", views.Places(2, 2, "feat_cache", "feat_idx"))
    carried = views.Carried(2, "conv_carry_in", "conv_carry_out")
    views.register("comfy.ldm.modules.diffusionmodules.model:ResnetBlock", carried)
    module = "comfy.ldm.lightricks.vae.causal_video_autoencoder"
    views.register(f"{module}:ResnetBlock3D", views.OfThread("temporal_cache_state"))
    for name in ("UNetMidBlock3D", "DepthToSpaceUpsample", "SpaceToDepthDownsample"):
        views.register_holder(f"{module}:{name}")
    vae_seedvr.register()


def compiles(module: torch.nn.Module, latent_dim: int = 0) -> bool:
    """Whether a VAE's videos or audio are compiled by its blocks.

    Args:
        latent_dim: sides of its latents, as ComfyUI's VAE object has them; 0: not asked.
    """
    dims = _VAES.get(f"{type(module).__module__}:{type(module).__qualname__}")
    return dims is not None and latent_dim in (0, dims) and bool(repeated_blocks(module))


def frames_of(x: torch.Tensor) -> int:
    """How many frames latents or pixels have; 1: it is an image."""
    return x.shape[2] if x.ndim == 5 else 1
