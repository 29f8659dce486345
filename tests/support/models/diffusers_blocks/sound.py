"""Classes that take sound."""

from __future__ import annotations

from typing import Any

from .case import WIDTH, Case, Noise, Sizes, mask, steps, text


def _music(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, 4, sizes.height),
        "encoder_hidden_states": noise(sizes.batch, sizes.height, WIDTH),
        "timestep": steps(sizes, 0.5),
    }


def _audio(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, 4 * sizes.height, 4),
        "encoder_hidden_states": text(sizes, noise),
        "encoder_attention_mask": mask(sizes),
        "timestep": steps(sizes, 0.5),
        "latent_cond": noise(sizes.batch, 4 * sizes.height, 4),
    }


def _stable_audio3(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, 4, 4 * sizes.height),
        "encoder_hidden_states": text(sizes, noise),
        "global_hidden_states": noise(sizes.batch, WIDTH),
        "timestep": steps(sizes, 0.5),
    }


CASES = (
    Case("MiniMaxMusic3Transformer1DModel", {"in_channels": 4, "condition_dim": WIDTH, "num_layers": 2,
        "num_attention_heads": 2, "attention_head_dim": 16, "ff_inner_dim": 32, "rotary_dim": 8,
        "fourier_embedding_dim": 16}, _music),
    Case("LongCatAudioDiTTransformer", {"dit_dim": 32, "dit_depth": 2, "dit_heads": 2, "dit_text_dim": WIDTH,
        "latent_dim": 4}, _audio),
    Case("StableAudio3DiTModel", {"io_channels": 4, "embed_dim": 32, "depth": 2, "num_heads": 2,
        "cond_token_dim": WIDTH, "global_cond_dim": WIDTH, "timestep_features_dim": 16, "num_memory_tokens": 3},
        _stable_audio3),
)  # fmt: skip
