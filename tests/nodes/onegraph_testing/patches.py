"""What popular packs do to models behind everybody's back, each in a few lines."""

from __future__ import annotations

import copy

import torch


def _pad(module, mode):
    """Let every convolution wrap around or not, in place, as packs for seamless textures do."""
    for child in module.modules():
        if isinstance(child, torch.nn.Conv2d):
            child.padding_mode = mode


class TestSeamless:
    """Changes the MODEL's own module in place, as SeamlessTile does; with a latent not before that is there."""

    @classmethod
    def INPUT_TYPES(cls):
        required = {"model": ("MODEL",), "mode": (["circular", "zeros"],)}
        return {"required": required, "optional": {"after": ("LATENT",)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "testing"

    def patch(self, model, mode, after=None):
        _pad(model.model.diffusion_model, mode)
        return (model,)


class TestSeamlessVAE:
    """Changes a VAE in place or in a deep copy, as MakeCircularVAE does."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"vae": ("VAE",), "way": (["in place", "copy"],)}}

    RETURN_TYPES = ("VAE",)
    FUNCTION = "patch"
    CATEGORY = "testing"

    def patch(self, vae, way):
        if way == "copy":
            vae = copy.deepcopy(vae)
        _pad(vae.first_stage_model, "circular")
        return (vae,)


class TestForwardReplaced:
    """Replaces the UNet's _forward around each call, as caches of its first block do."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "factor": ("FLOAT", {"default": 0.8})}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "testing"

    def patch(self, model, factor):
        clone = model.clone()
        unet = clone.model.diffusion_model

        def wrapper(apply_model, given):
            original = unet._forward
            unet._forward = lambda *args, **kwargs: factor * original(*args, **kwargs)
            try:
                return apply_model(given["input"], given["timestep"], **given["c"])
            finally:
                del unet._forward

        clone.set_model_unet_function_wrapper(wrapper)
        return (clone,)


class TestReplaceAttention:
    """Another attention for every model there is, as packs with attention kernels of their own do."""

    before = None

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "mode": (["replaced", "off"],)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "apply"
    CATEGORY = "testing"

    @classmethod
    def IS_CHANGED(cls, **inputs):
        return float("nan")

    def apply(self, model, mode):
        import comfy.ldm.modules.attention as attention

        cls = type(self)
        if mode == "replaced" and cls.before is None:
            before = cls.before = attention.optimized_attention
            attention.optimized_attention = lambda *args, **kwargs: before(*args, **kwargs) * 0.5
        elif mode == "off" and cls.before is not None:
            attention.optimized_attention, cls.before = cls.before, None
        return (model,)


class TestReplaceVAEModel:
    """What Select VAE Device does: a copy of the VAE that runs the patcher's model."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"vae": ("VAE",)}}

    RETURN_TYPES = ("VAE",)
    FUNCTION = "change"
    CATEGORY = "testing"

    def change(self, vae):
        changed = copy.copy(vae)
        changed.patcher = changed.patcher.clone()
        changed.first_stage_model = changed.patcher.model
        return (changed,)


NODES = {
    "OneGraphTestSeamless": TestSeamless,
    "OneGraphTestSeamlessVAE": TestSeamlessVAE,
    "OneGraphTestForwardReplaced": TestForwardReplaced,
    "OneGraphTestReplaceAttention": TestReplaceAttention,
    "OneGraphTestReplaceVAEModel": TestReplaceVAEModel,
}
