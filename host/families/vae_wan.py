"""The halves of ComfyUI's Wan VAEs, which Qwen-Image shares: single images, which the host computes whole."""

from __future__ import annotations

from typing import Any

import torch

from ...common.reasons import Reason
from ..comfyui.contract import uses
from .vae import DecoderHalf, EncoderHalf, Layout, VaeHalf

_PATCH = 2  # pixels of an image per unit of what Wan 2.2's VAE convolves


class Wan21(VaeHalf):
    """Inputs: latents [1,16,1,h,w], or images [1,3,1,8h,8w] (4 channels: Qwen-Image-Layered)."""

    supported = "VAEs of Wan 2.1 and Qwen-Image"
    uses = (*VaeHalf.uses, *uses("comfy.ldm.wan.vae.WanVAE", "decode", "encode"))

    def knows(self, module: torch.nn.Module) -> bool:
        from comfy.ldm.wan.vae import WanVAE

        return type(module) is WanVAE

    def layout(self, module: Any) -> Layout | Reason:
        return Layout(5, 2 ** (len(module.dim_mult) - 1))


class Wan21Decoder(Wan21, DecoderHalf):
    pass


class Wan21Encoder(Wan21, EncoderHalf):
    pass


class Wan22(VaeHalf):
    """Inputs: latents [1,48,1,h,w], or images [1,3,1,16h,16w]."""

    supported = "VAEs of Wan 2.2 5B"
    uses = (*VaeHalf.uses, *uses("comfy.ldm.wan.vae2_2.WanVAE", "decode", "encode"))

    def knows(self, module: torch.nn.Module) -> bool:
        from comfy.ldm.wan.vae2_2 import WanVAE

        return type(module) is WanVAE

    def layout(self, module: Any) -> Layout | Reason:
        return Layout(5, _PATCH * 2 ** (len(module.dim_mult) - 1))


class Wan22Decoder(Wan22, DecoderHalf):
    pass


class Wan22Encoder(Wan22, EncoderHalf):
    pass
