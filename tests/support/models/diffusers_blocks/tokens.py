"""Classes that take an image as tokens."""

from __future__ import annotations

from typing import Any

import torch

from .case import WIDTH, Case, Noise, Sizes, ids, steps, text

_ROPE = {"axes_dims_rope": (4, 4, 8)}
_JOINT = {
    "in_channels": 4,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": WIDTH,
    **_ROPE,
}


def _packed(sizes: Sizes, noise: Noise, channels: int = 4) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, sizes.height * sizes.width, channels),
        "encoder_hidden_states": text(sizes, noise),
        "timestep": steps(sizes, 0.5),
        "img_ids": ids(sizes.height, sizes.width),
        "txt_ids": torch.zeros(sizes.tokens, 3),
    }


def _flux2(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    found = _packed(sizes, noise)
    for name in ("img_ids", "txt_ids"):
        four = torch.nn.functional.pad(found[name], (0, 1))
        found[name] = four.expand(sizes.batch, *four.shape)
    return {**found, "guidance": steps(sizes, 3.5)}


def _flux(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {**_packed(sizes, noise), "pooled_projections": noise(sizes.batch, 16)}


def _fibo(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    layers = [noise(sizes.batch, sizes.tokens, 16) for _ in range(4)]
    return {**_packed(sizes, noise), "text_encoder_layers": layers}


def _bria(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {**_packed(sizes, noise), "pooled_projections": None}


def _shaped(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    """An image as tokens, with its sides as numbers."""
    return {
        "hidden_states": noise(sizes.batch, sizes.height * sizes.width, 16),
        "encoder_hidden_states": text(sizes, noise),
        "encoder_hidden_states_mask": torch.ones(sizes.batch, sizes.tokens, dtype=torch.int64),
        "timestep": steps(sizes, 0.5),
        "img_shapes": [[(1, sizes.height, sizes.width)]] * sizes.batch,
    }


def _nucleus(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {**_shaped(sizes, noise), "img_shapes": [(1, sizes.height, sizes.width)] * sizes.batch}


def _qwen21(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    text = torch.zeros(sizes.batch, sizes.tokens, dtype=torch.bool)
    image = torch.ones(sizes.batch, sizes.height * sizes.width // 4, dtype=torch.bool)
    return {**_shaped(sizes, noise), "img_mask": torch.cat([text, image], 1)}


def _krea(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    positions = torch.cat([torch.zeros(sizes.tokens, 3), ids(sizes.height, sizes.width)])
    return {
        "hidden_states": noise(sizes.batch, sizes.height * sizes.width, 4),
        "encoder_hidden_states": noise(sizes.batch, sizes.tokens, 3, WIDTH),
        "timestep": steps(sizes, 0.5),
        "position_ids": positions,
        "encoder_attention_mask": None,
    }


def _sd3(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, 4, sizes.height, sizes.width),
        "encoder_hidden_states": noise(sizes.batch, sizes.tokens, WIDTH),
        "pooled_projections": noise(sizes.batch, 16),
        "timestep": steps(sizes, 500.0),
    }


_SD3 = {
    "sample_size": 16,
    "pos_embed_max_size": 24,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 3,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "joint_attention_dim": WIDTH,
    "caption_projection_dim": 32,
    "pooled_projection_dim": 16,
}
CASES = (
    Case("FluxTransformer2DModel", {**_JOINT, "pooled_projection_dim": 16}, _flux, 4),
    Case("SD3Transformer2DModel", _SD3, _sd3, 3),
    Case("Flux2Transformer2DModel", {**_JOINT, "axes_dims_rope": (4, 4, 4, 4), "timestep_guidance_channels": 16},
        _flux2, 4),
    Case(
        "ChromaTransformer2DModel",
        {**_JOINT, "approximator_num_channels": 8, "approximator_hidden_dim": 16, "approximator_layers": 2},
        _packed,
        6,
        {"block_small": 8},  # two projections of three operations each
    ),
    Case("OvisImageTransformer2DModel", {**_JOINT, "out_channels": 4}, _packed, 4),
    Case("LongCatImageTransformer2DModel", {**_JOINT, "pooled_projection_dim": WIDTH}, _packed, 4),
    Case("BriaTransformer2DModel", _JOINT, _bria, 4),
    Case(
        "BriaFiboTransformer2DModel",
        {**_JOINT, "text_encoder_dim": 16},
        _fibo,
        8,
        {"block_small": 16},  # four projections of one operation each
    ),
    Case("QwenImageTransformer2DModel", {"in_channels": 16, "out_channels": 4, "num_layers": 2,
        "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": WIDTH, **_ROPE}, _shaped),
    Case("QwenImage21Transformer2DModel", {"in_channels": 16, "out_channels": 16, "num_layers": 2,
        "attention_head_dim": 16, "num_attention_heads": 2, "context_in_dim": WIDTH, **_ROPE}, _qwen21),
    Case("NucleusMoEImageTransformer2DModel", {"in_channels": 16, "out_channels": 4, "num_layers": 3,
        "attention_head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "joint_attention_dim": WIDTH,
        "dense_moe_strategy": "leave_first_block_dense", "num_experts": 4, "moe_intermediate_dim": 16,
        "capacity_factors": 2.0, **_ROPE}, _nucleus, 3),
    Case("Krea2Transformer2DModel", {"in_channels": 4, "num_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32, "timestep_embed_dim": 16,
        "text_hidden_dim": WIDTH, "num_text_layers": 3, "text_num_attention_heads": 2, "text_num_key_value_heads": 2,
        "text_intermediate_size": 32, **_ROPE}, _krea, 6),
)  # fmt: skip
