"""Test-only nodes: registers the small model families, encodes text without a text encoder, and shows failures."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from . import patches, steering, transformers

_spec = importlib.util.spec_from_file_location(
    "onegraph_test_models", Path(__file__).resolve().parents[3] / "tools" / "headless" / "models.py"
)
assert _spec is not None and _spec.loader is not None
_models = importlib.util.module_from_spec(_spec)
sys.modules["onegraph_test_models"] = _models
_spec.loader.exec_module(_models)
_models.register()

WORDS_PER_CHUNK = 75


def trust_slow_graphs():
    """Tiny models gain little and machines are noisy: no graph is refused as slower than eager in some tests."""
    if not os.environ.get("ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS"):
        return
    for name, module in list(sys.modules.items()):
        if name.endswith(".runtime.obtain.registry"):
            module.registry().policy = sys.modules[name.replace(".obtain.registry", ".policy")].ANY_SPEED


def seed_of(text):
    """A number for a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


class TestTextEncode:
    """Conditioning from text without a text encoder: seeded by the text, 77 tokens per 75 words, as CLIP chunks it."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING", {"multiline": True}), "width": ("INT", {"default": 2048})}}

    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "encode"
    CATEGORY = "testing"

    def encode(self, text, width):
        trust_slow_graphs()
        generator = torch.Generator().manual_seed(seed_of(text))
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


class _Vision:
    """What CLIP vision models do, as far as SVD_img2vid_Conditioning asks: an embedding of each image."""

    def encode_image(self, image, **_options):
        small = torch.nn.functional.adaptive_avg_pool2d(image.movedim(-1, 1).float(), (16, 16))
        return SimpleNamespace(image_embeds=small.mean(1).reshape(len(image), -1).repeat(1, 4) * 4 - 2)


class TestClipVision:
    """A CLIP_VISION without a model: 1024 numbers for each image, by its brightness."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ("CLIP_VISION",)
    FUNCTION = "load"
    CATEGORY = "testing"

    def load(self):
        return (_Vision(),)


NODE_CLASS_MAPPINGS = {
    **patches.NODES,
    **steering.NODES,
    **transformers.NODES,
    "OneGraphTestTextEncode": TestTextEncode,
    "OneGraphTestImage": TestImage,
    "OneGraphTestClipVision": TestClipVision,
}
