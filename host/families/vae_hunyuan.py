"""The halves of the VAEs of HunyuanImage 2.1 and HunyuanVideo 1.5: AutoencodingEngine with parts of its own."""

from __future__ import annotations

from typing import Any

import torch

from ..comfyui.contract import uses
from .vae import Autoencoder, Decoder, Encoder, Layout


class Hunyuan(Autoencoder):
    """Inputs: latents [1,C,h,w], or [1,C,1,h,w] for the VAEs of videos; images likewise."""

    supported = "VAEs of HunyuanImage and HunyuanVideo 1.5"
    uses = (
        *Autoencoder.uses,
        *uses("comfy.ldm.hunyuan_video", "vae.Decoder", "vae.Encoder", "vae_refiner.Decoder", "vae_refiner.Encoder"),
    )

    def knows(self, module: torch.nn.Module) -> bool:
        return super().knows(module) and self.half_layout(getattr(module, self.half)) is not None

    def half_layout(self, half: Any) -> Layout | None:
        from comfy.ldm.hunyuan_video import vae, vae_refiner

        if type(half) not in (vae.Decoder, vae.Encoder, vae_refiner.Decoder, vae_refiner.Encoder):
            return None
        stages = half.up if hasattr(half, "up") else half.down
        resampled = sum(hasattr(stage, "upsample") or hasattr(stage, "downsample") for stage in stages)
        return Layout(5 if hasattr(half, "refiner_vae") else 4, 2**resampled)


class HunyuanDecoder(Hunyuan, Decoder):
    pass


class HunyuanEncoder(Hunyuan, Encoder):
    pass
