"""Test-only nodes: registers the small model families, encodes text without a text encoder, and shows failures."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import os
import sys
from pathlib import Path

import torch

_spec = importlib.util.spec_from_file_location(
    "onegraph_test_models", Path(__file__).resolve().parents[2] / "support" / "models.py"
)
assert _spec is not None and _spec.loader is not None
_models = importlib.util.module_from_spec(_spec)
sys.modules["onegraph_test_models"] = _models
_spec.loader.exec_module(_models)
_models.register()

WORDS_PER_CHUNK = 75


def _trust_slow_graphs():
    """Tiny models gain little and machines are noisy: no graph is refused as slower than eager in tests."""
    for name, module in list(sys.modules.items()):
        if name.endswith(".compiler.engine") and hasattr(module, "SLOWER"):
            module.SLOWER = 0.0


class TestTextEncode:
    """Conditioning from text without a text encoder: seeded by the text, 77 tokens per 75 words, as CLIP chunks it."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING", {"multiline": True}), "width": ("INT", {"default": 2048})}}

    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "encode"
    CATEGORY = "testing"

    def encode(self, text, width):
        if os.environ.get("ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS"):
            _trust_slow_graphs()
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
        generator = torch.Generator().manual_seed(seed)
        chunks = max(1, -(-len(text.split()) // WORDS_PER_CHUNK))
        tokens = torch.randn(1, 77 * chunks, width, generator=generator)
        pooled = torch.randn(1, 1280, generator=generator)
        return ([[tokens, {"pooled_output": pooled}]],)


class TestImage:
    """A picture from a seed, smooth with some noise."""

    @classmethod
    def INPUT_TYPES(cls):
        size = ("INT", {"default": 128, "min": 8, "max": 4096})
        return {"required": {"width": size, "height": size, "seed": ("INT", {"default": 1})}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "draw"
    CATEGORY = "testing"

    def draw(self, width, height, seed):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.rand(1, 3, 5, 5, generator=generator)
        smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=True)
        noise = torch.randn(1, 3, height, width, generator=generator)
        return ((smooth + 0.03 * noise).clamp(0, 1).movedim(1, -1).contiguous(),)


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


NODE_CLASS_MAPPINGS = {
    "OneGraphTestTextEncode": TestTextEncode,
    "OneGraphTestImage": TestImage,
    "OneGraphTestSeamless": TestSeamless,
    "OneGraphTestSeamlessVAE": TestSeamlessVAE,
    "OneGraphTestForwardReplaced": TestForwardReplaced,
}
