"""Classes that take an image."""

from __future__ import annotations

from typing import Any

import torch

from .case import HUNYUAN, WIDTH, Case, Noise, Sizes, mask, steps, text


def _image(sizes: Sizes, noise: Noise, channels: int = 4) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, channels, sizes.height, sizes.width),
        "encoder_hidden_states": text(sizes, noise),
        "timestep": steps(sizes),
    }


def _z_image(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "x": [noise(4, 1, sizes.height, sizes.width) for _ in range(sizes.batch)],
        "cap_feats": [noise(sizes.tokens, WIDTH) for _ in range(sizes.batch)],
        "t": steps(sizes, 0.5),
    }


def _masked(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {**_image(sizes, noise), "encoder_attention_mask": mask(sizes)}


def _pixart(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    added = {"resolution": None, "aspect_ratio": None}
    return {**_image(sizes, noise), "added_cond_kwargs": added, "encoder_attention_mask": mask(sizes)}


def _sized(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    side = torch.tensor([[64.0, 48.0]]).repeat(sizes.batch, 1)
    return {**_image(sizes, noise), "original_size": side, "target_size": side, "crop_coords": side * 0}


def _glm(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    tokens = sizes.height * sizes.width // 4
    found = {name: value for name, value in _sized(sizes, noise).items() if name != "original_size"}
    prior = torch.arange(tokens).remainder(16).repeat(sizes.batch, 1)
    return {**found, "prior_token_id": prior, "prior_token_drop": torch.zeros_like(prior, dtype=torch.bool)}


def _ernie(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    found = _image(sizes, noise)
    text = found.pop("encoder_hidden_states")
    return {**found, "text_bth": text, "text_lens": torch.full((sizes.batch,), sizes.tokens)}


def _hunyuan_image(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {**_image(sizes, noise), "encoder_attention_mask": torch.ones(sizes.batch, sizes.tokens)}


def _classes(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, 4, 8, 8),
        "timestep": steps(sizes).long(),
        "class_labels": torch.arange(sizes.batch),
    }


CASES = (
    Case("ZImageTransformer2DModel", {"in_channels": 4, "dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2,
        "cap_feat_dim": WIDTH, "axes_dims": [4, 4, 8], "axes_lens": [512, 32, 32]}, _z_image, 6),
    Case("GlmImageTransformer2DModel", {"in_channels": 4, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 2, "text_embed_dim": WIDTH, "time_embed_dim": 16, "condition_dim": 16,
        "prior_vq_quantizer_codebook_size": 16}, _glm),
    Case("ErnieImageTransformer2DModel", {"hidden_size": 32, "num_attention_heads": 2, "num_layers": 2,
        "ffn_hidden_size": 64, "in_channels": 4, "out_channels": 4, "text_in_dim": WIDTH, "rope_axes_dim": (4, 4, 8)},
        _ernie),
    Case("HunyuanImageTransformer2DModel", {**HUNYUAN, "num_single_layers": 2, "rope_axes_dim": (8, 8)},
        _hunyuan_image, 6),
    # Classes whose blocks diffusers does not name.
    Case("PixArtTransformer2DModel", {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2,
        "cross_attention_dim": 32, "caption_channels": WIDTH, "sample_size": 8, "use_additional_conditions": False},
        _pixart),
    Case("SanaTransformer2DModel", {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2,
        "attention_head_dim": 16, "num_layers": 2, "num_cross_attention_heads": 2, "cross_attention_head_dim": 16,
        "cross_attention_dim": 32, "caption_channels": WIDTH}, _masked),
    Case("Lumina2Transformer2DModel", {"in_channels": 4, "hidden_size": 32, "num_layers": 2, "num_attention_heads": 2,
        "num_kv_heads": 1, "multiple_of": 16, "axes_dim_rope": (4, 4, 8), "axes_lens": (300, 64, 64),
        "cap_feat_dim": WIDTH}, _masked, 6, {"block_recorded": 2}),  # attention masks of one token: a kind of their own
    Case("AuraFlowTransformer2DModel", {"sample_size": 16, "num_mmdit_layers": 2, "num_single_dit_layers": 2,
        "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": WIDTH, "caption_projection_dim": 32,
        "pos_embed_max_size": 256}, _image, 4),
    Case("CogView4Transformer2DModel", {"in_channels": 4, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 2, "text_embed_dim": WIDTH, "time_embed_dim": 16, "condition_dim": 8,
        "rope_axes_dim": (64, 64)}, _sized),
    Case("DiTTransformer2DModel", {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2,
        "sample_size": 8, "num_embeds_ada_norm": 10}, _classes),
)  # fmt: skip
