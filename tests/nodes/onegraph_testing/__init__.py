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


class TestCircularVAE:
    """What nodes for seamless tiling do: every convolution of the VAE wraps around."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"vae": ("VAE",), "mode": (["make a copy", "modify in place"],)}}

    RETURN_TYPES = ("VAE",)
    FUNCTION = "change"
    CATEGORY = "testing"

    def change(self, vae, mode):
        changed = copy.deepcopy(vae) if mode == "make a copy" else vae
        for layer in changed.first_stage_model.modules():
            if isinstance(layer, torch.nn.Conv2d):
                layer.padding_mode = "circular"
        return (changed,)


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


from .patches import NODES as _patches  # noqa: E402

NODE_CLASS_MAPPINGS = {
    **_patches,
    "OneGraphTestTextEncode": TestTextEncode,
    "OneGraphTestCircularVAE": TestCircularVAE,
    "OneGraphTestReplaceVAEModel": TestReplaceVAEModel,
}
