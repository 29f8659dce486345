"""Families that make sound and things in space."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from ..models.dits import WIDTH, Dit
from ..scenes.sampling import Sampling, node, result_of, settings
from .family import Conds, Family
from .nodes import aura, drawn, sd3


def _song(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {"conditioning_lyrics": torch.randint(0, 99, (1, 7), generator=generator)}


def _lyrics(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {"conditioning_lyrics": drawn(generator, 1, 7, WIDTH)}


def _views(count: int) -> Conds:
    def made(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
        return {"reference_latents": [drawn(generator, 1, 128, 4, 4) for _ in range(count)]}

    return made


def _tonemap(sampling: Sampling) -> None:
    importlib.import_module("comfy_extras.nodes_post_processing")  # as the host does before: they import each other
    operation = result_of("nodes_latent", "LatentOperationTonemapReinhard", multiplier=1.0)
    node("nodes_latent", "LatentApplyOperationCFG", operation=operation)(sampling)


_SAME_LENGTH = ((9, 9), (12, 12))
_SHAPE = {
    "image_model": "hunyuan3d2", "in_channels": 64, "context_in_dim": WIDTH, "hidden_size": 128, "mlp_ratio": 4.0,
    "num_heads": 4, "depth": 2, "depth_single_blocks": 3, "qkv_bias": True, "guidance_embed": False,
}  # fmt: skip
_POINTS = (64, 96), (64, 64)

_SECONDS = "conditioner.conditioners.seconds_{}.embedder.embedding."  # of a number
_AUDIO = {
    "audio_model": "dit1.0", "embed_dim": 128, "depth": 3, "num_heads": 4, "cond_token_dim": 768,
    "global_cond_dim": 768, "project_cond_tokens": True,
}  # fmt: skip


def _buffers(module: Any) -> None:
    """What a file has of them: no class fills its own."""
    for name, buffer in module.named_buffers():
        torch.linspace(1.0, 0.01, buffer.numel(), out=buffer) if "inv_freq" in name else buffer.zero_()


OTHERS: dict[str, Family] = {
    "stable audio": Family(
        Dit("StableAudio", {**_AUDIO, "io_channels": 64, "global_cond_dim": 2 * 768}, width=768, after=_buffers,
            beside={_SECONDS.format(name) + part: shape for name in ("start", "total")
                    for part, shape in (("0.weights", (128,)), ("1.weight", (768, 257)), ("1.bias", (768,)))}),
        ((64, 60), (64, 44)),
    ),
    "stable audio 3": Family(
        Dit("StableAudio3",
            {**_AUDIO, "io_channels": 256, "global_cond_shared_embed": True, "global_cond_type": "adaLN",
             "timestep_features_type": "expo", "num_memory_tokens": 8, "local_add_cond_dim": 257,
             "attn_kwargs": {"qk_norm": "ln", "feat_scale": True, "differential": True}}, width=768, after=_buffers,
            beside={_SECONDS.format("total") + "1.weight": (768, 256), _SECONDS.format("total") + "1.bias": (768,),
                    "conditioner.conditioners.prompt.padding_embedding": (768,)}),
        ((256, 60), (256, 44)), (settings(sampler="lcm"),),
    ),
    "ace-step 1": Family(
        Dit("ACEStep",
            {"audio_model": "ace", "attention_head_dim": 32, "in_channels": 8, "inner_dim": 128, "max_height": 16,
             "max_position": 32768, "max_width": 32768, "mlp_ratio": 2.5, "num_attention_heads": 4, "num_layers": 3,
             "out_channels": 8, "patch_size": [16, 1], "rope_theta": 1e6, "speaker_embedding_dim": 512,
             "text_embedding_dim": WIDTH, "ssl_encoder_depths": [2, 2], "ssl_latent_dims": [24, 16],
             "ssl_names": ["mert", "m-hubert"], "lyric_encoder_vocab_size": 100, "lyric_hidden_size": 1024}),
        ((8, 16, 40), (8, 16, 56)), (sd3(5.0), _tonemap), _song,
    ),
    "ace-step 1.5": Family(
        Dit("ACEStep15",
            {"audio_model": "ace1.5", "hidden_size": 128, "intermediate_size": 192, "num_heads": 4, "num_kv_heads": 2,
             "head_dim": 32, "encoder_hidden_size": 96, "encoder_num_heads": 4, "encoder_intermediate_size": 128,
             "num_dit_layers": 4, "num_lyric_layers": 2, "num_timbre_layers": 2, "text_hidden_dim": WIDTH,
             "fsq_dim": 96, "sliding_window": 8}),
        ((64, 60), (64, 40)), (aura(3.0), settings(cfg=1.0)), _lyrics,
    ),
    "hunyuan3d 2": Family(Dit("Hunyuan3Dv2", _SHAPE), _POINTS, (aura(1.0),), tokens=_SAME_LENGTH),
    "hunyuan3d 2 mv turbo": Family(
        Dit("Hunyuan3Dv2", {**_SHAPE, "guidance_embed": True}), _POINTS, (aura(1.0), settings(cfg=1.0)),
        tokens=_SAME_LENGTH, graphs="hunyuan3d 2",
    ),
    "hunyuan3d 2.1": Family(
        Dit("Hunyuan3Dv2_1",
            {"image_model": "hunyuan3d2_1", "in_channels": 64, "context_dim": WIDTH, "hidden_size": 128,
             "num_heads": 4, "depth": 8, "qkv_bias": False, "guidance_cond_proj_dim": None, "num_moe_layers": 2,
             "num_experts": 4}),
        _POINTS, (aura(1.0),), tokens=_SAME_LENGTH, promised="some", codes=("waits_for_change",),
    ),
    "triposplat": Family(
        Dit("TripoSplat",
            {"image_model": "triposplat", "q_token_length": 64, "model_channels": 128, "cond_channels": WIDTH,
             "num_blocks": 3, "num_refiner_blocks": 2, "num_head_channels": 32, "cond2_channels": 128}),
        ((64, 16), (64, 16)), (), _views(1), audio=((1, 5), (1, 5)), tokens=((21, 21), (21, 21)),
        promised="some", codes=("block_recorded",),
    ),
}  # fmt: skip
