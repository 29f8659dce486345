"""Small diffusion transformers without files: a loader, their text and latents, their latents as an image, patches."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

_spec = importlib.util.spec_from_file_location(
    "onegraph_test_dits", Path(__file__).resolve().parents[2] / "support" / "models" / "dits.py"
)
assert _spec is not None and _spec.loader is not None
dits = importlib.util.module_from_spec(_spec)
sys.modules["onegraph_test_dits"] = dits
_spec.loader.exec_module(dits)

_SIDE = {"default": 128, "min": 8, "max": 4096}


class TestLoadTransformer:
    """A MODEL of a family with seeded weights."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"family": ([*dits.DITS],), "seed": ("INT", {"default": 0})}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load"
    CATEGORY = "testing"

    def load(self, family, seed):
        return (dits.load(family, seed=seed),)


class TestTransformerText:
    """Conditioning of a family without a text encoder, seeded by the text, a token for each word.

    `features`: of a token, where a model takes others than the small ones of its family.
    """

    @classmethod
    def INPUT_TYPES(cls):
        sides = {"width": ("INT", _SIDE), "height": ("INT", _SIDE)}
        required = {"text": ("STRING", {"multiline": True}), "family": ([*dits.DITS],), **sides}
        return {"required": required, "optional": {"features": ("INT", {"default": 0})}}

    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "encode"
    CATEGORY = "testing"

    def encode(self, text, family, width, height, features=0):
        from . import seed_of, trust_slow_graphs

        trust_slow_graphs()
        generator = torch.Generator().manual_seed(seed_of(text))
        dit = dits.DITS[family]
        tokens = torch.randn(1, len(text.split()), features or dit.width, generator=generator)
        return ([[tokens, dit.conds(generator, (1, height // 8, width // 8))]],)


class TestTransformerLatent:
    """An empty latent of a family, or one of a picture."""

    @classmethod
    def INPUT_TYPES(cls):
        sides = {"width": ("INT", _SIDE), "height": ("INT", _SIDE), "batch_size": ("INT", {"default": 1})}
        return {"required": {"family": ([*dits.DITS],), "content": (["empty", "picture"],), **sides}}

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "make"
    CATEGORY = "testing"

    def make(self, family, content, width, height, batch_size):
        shape = (batch_size, *dits.DITS[family].latent, height // 8, width // 8)
        if content == "empty":
            return ({"samples": torch.zeros(shape)},)
        return ({"samples": 0.8 * torch.randn(shape, generator=torch.Generator().manual_seed(6))},)


class TestTransformerDecode:
    """All channels of a latent side by side, three to a picture; six standard deviations are all its range."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"samples": ("LATENT",)}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "decode"
    CATEGORY = "testing"

    def decode(self, samples):
        latent = samples["samples"]
        if latent.ndim == 5:
            latent = latent.movedim(2, 1).flatten(0, 1)
        latent = latent / (6 * latent.std().clamp(min=1e-6)) + 0.5
        missing = -latent.shape[1] % 3
        latent = torch.nn.functional.pad(latent, (0, 0, 0, 0, 0, missing))
        parts = latent.unflatten(1, (-1, 3)).movedim(2, -1)  # [B, C/3, H, W, 3]
        return (torch.cat(parts.unbind(1), dim=2).clamp(0, 1).contiguous(),)


class TestTransformerPatch:
    """What packs put between a transformer's blocks, or in a block's place."""

    @classmethod
    def INPUT_TYPES(cls):
        places = ["post_input", "double_block", "replaced", "skipped", "attn1_patch", "weights moved"]
        return {"required": {"model": ("MODEL",), "place": (places,), "number": ("INT", {"default": 1})}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "testing"

    def patch(self, model, place, number):
        clone = model.clone()

        def between(args):
            args["img"] *= 1.2
            return args

        def move(args):
            for one in clone.model.diffusion_model.parameters():
                one.data = one.data.clone()
            return args

        def replaced(args, extra):
            found = extra["original_block"](args)
            return {**found, "img": found["img"] + 0.3 * found["img"].roll(1, -1)}

        def skipped(args, extra):
            return {key: one for key, one in args.items() if key in ("img", "txt")}

        def attention(q, k, v, pe=None, attn_mask=None, extra_options=None):
            return {"q": q, "k": k * 0.5, "v": v + v.roll(1, -1), "pe": pe, "attn_mask": attn_mask}

        if place in ("post_input", "double_block"):
            clone.set_model_patch(between, place)
        elif place == "attn1_patch":
            clone.set_model_patch(attention, place)
        elif place == "weights moved":
            for name in ("post_input", "double_block"):
                clone.set_model_patch(move, name)
        else:
            for kind in ("double_block", "single_block"):
                clone.set_model_patch_replace(replaced if place == "replaced" else skipped, "dit", kind, number)
        return (clone,)


class TestBlockHook:
    """A hook on one of a model's blocks, as packs have that swap blocks; it stays until everything is unloaded."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "testing"

    def patch(self, model):
        def bring(block, args):
            for one in block.parameters():
                one.data = one.data.clone()

        lists = [one for one in model.model.diffusion_model.children() if isinstance(one, torch.nn.ModuleList)]
        lists[0][0].register_forward_pre_hook(bring)
        return (model,)


NODES = {
    "OneGraphTestLoadTransformer": TestLoadTransformer,
    "OneGraphTestTransformerText": TestTransformerText,
    "OneGraphTestTransformerLatent": TestTransformerLatent,
    "OneGraphTestTransformerDecode": TestTransformerDecode,
    "OneGraphTestTransformerPatch": TestTransformerPatch,
    "OneGraphTestBlockHook": TestBlockHook,
}
