"""Small diffusion transformers without files: a loader, their text and latents, their latents as an image, patches."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from . import _SIDE, seed_of, trust_slow_graphs
from .declared import integer, loaded, node

dits = loaded("onegraph_test_dits", "tests", "support", "models", "dits.py")
_FAMILY = [*dits.DITS]


@node("LoadTransformer", "MODEL", family=_FAMILY, seed=integer(0))
def load(family, seed):
    """A MODEL of a family with seeded weights."""
    return dits.load(family, seed=seed)


@node(
    "TransformerText", "CONDITIONING", text=("STRING", {"multiline": True}), family=_FAMILY, width=_SIDE, height=_SIDE,
    features=integer(0), optional=("features",),
)  # fmt: skip
def encode(text, family, width, height, features=0):
    """Conditioning of a family without a text encoder, seeded by the text, a token for each word.

    `features`: of a token, where a model takes others than the small ones of its family.
    """
    trust_slow_graphs()
    generator = torch.Generator().manual_seed(seed_of(text))
    dit = dits.DITS[family]
    tokens = torch.randn(1, len(text.split()), features or dit.width, generator=generator)
    return [[tokens, dit.conds(generator, (1, height // 8, width // 8))]]


@node(
    "TransformerLatent", "LATENT", family=_FAMILY, content=["empty", "picture"], width=_SIDE, height=_SIDE,
    batch_size=integer(1),
)  # fmt: skip
def latent(family, content, width, height, batch_size):
    """An empty latent of a family, or one of a picture."""
    shape = (batch_size, *dits.DITS[family].latent, height // 8, width // 8)
    if content == "empty":
        return {"samples": torch.zeros(shape)}
    return {"samples": 0.8 * torch.randn(shape, generator=torch.Generator().manual_seed(6))}


@node("TransformerAudio", "LATENT", family=_FAMILY)
def audio(family):
    """An empty latent of a family's second kind."""
    return {"samples": torch.zeros(1, *dits.DITS[family].audio)}


@node("SmallVAE", "VAE", name=("STRING", {"default": "flux"}))
def small_vae(name):
    """One of the small VAEs, without a file."""
    sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))  # where vaes.py finds `headless`
    return loaded("onegraph_test_vaes", "tests", "support", "comfyui", "vaes.py").load(name)


@node("TransformerDecode", "IMAGE", samples="LATENT")
def decode(samples):
    """All channels of a latent side by side, three to a picture; six standard deviations are all its range."""
    latent = samples["samples"]
    if latent.ndim == 5:
        latent = latent.movedim(2, 1).flatten(0, 1)
    latent = latent / (6 * latent.std().clamp(min=1e-6)) + 0.5
    missing = -latent.shape[1] % 3
    latent = torch.nn.functional.pad(latent, (0, 0, 0, 0, 0, missing))
    parts = latent.unflatten(1, (-1, 3)).movedim(2, -1)  # [B, C/3, H, W, 3]
    return torch.cat(parts.unbind(1), dim=2).clamp(0, 1).contiguous()


_PLACES = ["post_input", "double_block", "replaced", "skipped", "attn1_patch", "weights moved"]


@node("TransformerPatch", "MODEL", model="MODEL", place=_PLACES, number=integer(1))
def patch(model, place, number):
    """What packs put between a transformer's blocks, or in a block's place."""
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
    return clone


@node("BlockHook", "MODEL", model="MODEL")
def block_hook(model):
    """A hook on one of a model's blocks, as packs have that swap blocks; it stays until everything is unloaded."""

    def bring(block, args):
        for one in block.parameters():
            one.data = one.data.clone()

    lists = [one for one in model.model.diffusion_model.children() if isinstance(one, torch.nn.ModuleList)]
    lists[0][0].register_forward_pre_hook(bring)
    return model
