"""Classes that take a video."""

from __future__ import annotations

from typing import Any

import torch

from .case import HUNYUAN, WIDTH, Case, Noise, Sizes, mask, steps, text


def _video(sizes: Sizes, noise: Noise, channels: int = 4) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, channels, sizes.frames, sizes.height, sizes.width),
        "encoder_hidden_states": text(sizes, noise),
        "timestep": steps(sizes),
    }


def _hunyuan_video(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        **_video(sizes, noise),
        "encoder_attention_mask": mask(sizes),
        "pooled_projections": noise(sizes.batch, 8),
        "guidance": steps(sizes, 6.0),
    }


def _hunyuan_video15(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        **_video(sizes, noise),
        "encoder_attention_mask": torch.ones(sizes.batch, sizes.tokens),
        "encoder_hidden_states_2": noise(sizes.batch, 5, WIDTH),
        "encoder_attention_mask_2": torch.ones(sizes.batch, 5),
        "image_embeds": torch.zeros(sizes.batch, 4, 16),
    }


def _ltx(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, sizes.frames * sizes.height * sizes.width, 4),
        "encoder_hidden_states": text(sizes, noise),
        "encoder_attention_mask": mask(sizes).long(),
        "timestep": steps(sizes).long(),
        "num_frames": sizes.frames,
        "height": sizes.height,
        "width": sizes.width,
    }


def _ltx2(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        **_ltx(sizes, noise),
        "audio_hidden_states": noise(sizes.batch, 9, 4),
        "audio_encoder_hidden_states": text(sizes, noise),
        "audio_encoder_attention_mask": mask(sizes).long(),
        "timestep": steps(sizes)[:, None],
        "audio_num_frames": 9,
        "fps": 25.0,
    }


def _vace(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    control = noise(sizes.batch, 6, sizes.frames, sizes.height, sizes.width)
    return {**_video(sizes, noise), "control_hidden_states": control}


def _kandinsky(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, sizes.frames, sizes.height, sizes.width, 4),
        "encoder_hidden_states": text(sizes, noise),
        "timestep": steps(sizes),
        "pooled_projections": noise(sizes.batch, 8),
        "visual_rope_pos": [
            torch.arange(sizes.frames),
            torch.arange(sizes.height // 2),
            torch.arange(sizes.width // 2),
        ],
        "text_rope_pos": torch.arange(sizes.tokens),
    }


def _cogvideo(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    found = _video(sizes, noise)
    tokens = sizes.frames * sizes.height * sizes.width // 4
    rope = noise(tokens, 16), noise(tokens, 16)
    return {**found, "hidden_states": found["hidden_states"].transpose(1, 2), "image_rotary_emb": rope}


def _mochi(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {**_video(sizes, noise), "encoder_attention_mask": mask(sizes)}


def _motif(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {**_video(sizes, noise), "encoder_attention_mask": mask(sizes)}


def _anyflow(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    found = _video(sizes, noise)
    video = found["hidden_states"].transpose(1, 2)
    steps = torch.full((sizes.batch, sizes.frames), 500.0)
    return {**found, "hidden_states": video, "timestep": steps, "r_timestep": steps - 100}


_WAN = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": WIDTH,
    "freq_dim": 16,
    "ffn_dim": 32,
    "num_layers": 2,
    "rope_max_seq_len": 32,
}


CASES = (
    Case("WanTransformer3DModel", _WAN, _video),
    Case("SkyReelsV2Transformer3DModel", _WAN, _video),
    Case("ChronoEditTransformer3DModel", _WAN, _video),
    Case("WanVACETransformer3DModel", {**_WAN, "vace_layers": [0, 1], "vace_in_channels": 6}, _vace, 4),
    Case("AnyFlowTransformer3DModel", _WAN, _anyflow),
    Case("HeliosTransformer3DModel", {name: value for name,
        value in _WAN.items() if name != "rope_max_seq_len"} | {"rope_dim": (4, 4, 4)}, _video),
    Case("HunyuanVideoTransformer3DModel", {**HUNYUAN, "num_single_layers": 2, "pooled_projection_dim": 8},
        _hunyuan_video, 6),
    Case("HunyuanVideo15Transformer3DModel", {**HUNYUAN, "text_embed_2_dim": WIDTH, "image_embed_dim": 16,
        "target_size": 16, "task_type": "t2v"}, _hunyuan_video15, 4),
    Case("LTXVideoTransformer3DModel", {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2,
        "attention_head_dim": 12, "cross_attention_dim": 24, "num_layers": 2, "caption_channels": WIDTH}, _ltx),
    Case("LTX2VideoTransformer3DModel", {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2,
        "attention_head_dim": 12, "cross_attention_dim": 24, "audio_in_channels": 4, "audio_out_channels": 4,
        "audio_num_attention_heads": 2, "audio_attention_head_dim": 6, "audio_cross_attention_dim": 12,
        "num_layers": 2, "caption_channels": WIDTH, "rope_double_precision": False}, _ltx2),
    Case("Kandinsky5Transformer3DModel", {"in_visual_dim": 4, "out_visual_dim": 4, "in_text_dim": WIDTH,
        "in_text_dim2": 8, "time_dim": 16, "model_dim": 32, "ff_dim": 64, "num_text_blocks": 2, "num_visual_blocks": 2,
        "axes_dims": (4, 4, 8)}, _kandinsky, 4),
    Case("MotifVideoTransformer3DModel", {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2,
        "attention_head_dim": 16, "num_layers": 2, "num_single_layers": 2, "text_embed_dim": WIDTH,
        "rope_axes_dim": (4, 4, 8)}, _motif, 4),
    Case("JoyImageEditTransformer3DModel", {"in_channels": 4, "hidden_size": 32, "num_attention_heads": 2,
        "text_dim": WIDTH, "num_layers": 2, "rope_dim_list": [4, 4, 8]}, _video),
    Case("CogVideoXTransformer3DModel", {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4,
        "out_channels": 4, "time_embed_dim": 16, "text_embed_dim": WIDTH, "num_layers": 2,
        "use_rotary_positional_embeddings": True}, _cogvideo),
    Case(
        "MochiTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "num_layers": 3,
            "in_channels": 4,
            "text_embed_dim": WIDTH,
            "time_embed_dim": 16,
            "pooled_projection_dim": 16,
            "max_sequence_length": 77,
        },
        _mochi,
        3,
        {"waits_for_change": 12},  # what they compute depends on the values of the mask
    ),
)  # fmt: skip
