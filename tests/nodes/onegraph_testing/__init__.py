"""Test-only nodes: registers the small model families, encodes text without a text encoder, and shows failures."""

from __future__ import annotations

import hashlib
import os
import sys
from types import SimpleNamespace

import torch

from .declared import NODES, integer, loaded, node

loaded("onegraph_test_models", "tools", "headless", "models.py").register()

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


@node("TextEncode", "CONDITIONING", text=("STRING", {"multiline": True}), width=integer(2048))
def encode(text, width):
    """Conditioning from text without a text encoder: seeded by the text, 77 tokens per 75 words, as CLIP chunks it."""
    trust_slow_graphs()
    generator = torch.Generator().manual_seed(seed_of(text))
    chunks = max(1, -(-len(text.split()) // WORDS_PER_CHUNK))
    tokens = torch.randn(1, 77 * chunks, width, generator=generator)
    pooled = torch.randn(1, 1280, generator=generator)
    return [[tokens, {"pooled_output": pooled}]]


_SIDE = integer(128, min=8, max=4096)


@node("Image", "IMAGE", width=_SIDE, height=_SIDE, seed=integer(1))
def draw(width, height, seed):
    """A picture from a seed, smooth with some noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 5, 5, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=True)
    noise = torch.randn(1, 3, height, width, generator=generator)
    return (smooth + 0.03 * noise).clamp(0, 1).movedim(1, -1).contiguous()


class _Vision:
    """What CLIP vision models do, as far as SVD_img2vid_Conditioning asks: an embedding of each image."""

    def encode_image(self, image, **_options):
        small = torch.nn.functional.adaptive_avg_pool2d(image.movedim(-1, 1).float(), (16, 16))
        return SimpleNamespace(image_embeds=small.mean(1).reshape(len(image), -1).repeat(1, 4) * 4 - 2)


@node("ClipVision", "CLIP_VISION")
def clip_vision():
    """A CLIP_VISION without a model: 1024 numbers for each image, by its brightness."""
    return _Vision()


from . import patches, steering, texts, transformers  # noqa: E402, F401 - each registers its nodes

NODE_CLASS_MAPPINGS = NODES
