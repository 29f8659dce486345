"""What popular packs do to models behind everybody's back, each in a few lines."""

from __future__ import annotations

from unittest.mock import patch

import torch


class TestSeamless:
    """Circular padding set in place on every convolution of a UNet, as seamless-tiling packs do; `off` undoes it."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "mode": (["circular", "off"],)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "apply"
    CATEGORY = "testing"

    @classmethod
    def IS_CHANGED(cls, **inputs):
        return float("nan")

    def apply(self, model, mode):
        for module in model.model.diffusion_model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.padding_mode = "circular" if mode == "circular" else "zeros"
        return (model,)


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


class TestForwardCache:
    """Patches the UNet around each call, as the first block caches did."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "apply"
    CATEGORY = "testing"

    def apply(self, model):
        unet = model.model.diffusion_model

        def wrapper(apply_model, arguments):
            original = unet._forward
            with patch.object(unet, "_forward", lambda *args, **kwargs: original(*args, **kwargs) * 0.8):
                return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

        patched = model.clone()
        patched.set_model_unet_function_wrapper(wrapper)
        return (patched,)


NODES = {
    "OneGraphTestSeamless": TestSeamless,
    "OneGraphTestReplaceAttention": TestReplaceAttention,
    "OneGraphTestForwardCache": TestForwardCache,
}
