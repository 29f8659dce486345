"""Small models of diffusers' classes with repeated blocks, with random weights, and what they are called with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

WIDTH = 24  # of prompts


@dataclass(frozen=True)
class Sizes:
    """Of one call: height and width in latent units."""

    batch: int = 2
    frames: int = 5
    height: int = 8
    width: int = 6
    tokens: int = 7


FIRST = Sizes()
OTHERS = (Sizes(1, 2, 4, 10, 12), Sizes(3, 1, 6, 6, 1), Sizes(1, 5, 16, 12, 77))
Call = Callable[[Sizes, "Noise"], dict[str, Any]]


class Noise:
    """Normal numbers of a call."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator)


@dataclass(frozen=True)
class Case:
    """One class.

    Attributes:
        config: of a small model.
        call: its arguments.
        blocks: how many blocks run in a call.
        eager: how many calls of blocks run eager in a call of each of the sizes, by the code of the reason.
    """

    name: str
    config: Mapping[str, Any] = field(repr=False)
    call: Call = field(repr=False)
    blocks: int = 2
    eager: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def calls(self) -> int:
        """How many calls of blocks graphs serve in a call of each of the sizes."""
        return self.blocks * (1 + len(OTHERS)) - sum(self.eager.values())

    def model(self, seed: int = 0) -> Any:
        """A model with seeded weights, none of them zero: blocks of new models would change nothing."""
        import diffusers
        from diffusers.models import transformers

        torch.manual_seed(seed)
        cls = getattr(diffusers, self.name, None) or getattr(transformers, self.name)
        made = cls(**self.config).eval().requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        for weight in made.parameters():
            stacked = weight.ndim == 3 and weight.shape[0] > 1  # of experts, which the class leaves unset
            if stacked or not weight.count_nonzero():
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
        return made

    def arguments(self, sizes: Sizes = FIRST) -> dict[str, Any]:
        """What the model is called with."""
        given = self.call(sizes, Noise(sizes.batch * sizes.height + sizes.tokens))
        return {**given, "return_dict": False}


def result_of(output: Any) -> torch.Tensor:
    """All tensors of a model's output, flat and joined."""
    if isinstance(output, torch.Tensor):
        return output.flatten()
    return torch.cat([result_of(one) for one in output if one is not None])


def _steps(sizes: Sizes, value: float = 500.0) -> torch.Tensor:
    return torch.full((sizes.batch,), value)


def _text(sizes: Sizes, noise: Noise, width: int = WIDTH) -> torch.Tensor:
    return noise(sizes.batch, sizes.tokens, width)


def _mask(sizes: Sizes, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    """Of a prompt whose last third is padding, in the first element of the batch alone."""
    mask = torch.ones(sizes.batch, sizes.tokens, dtype=dtype)
    if sizes.tokens > 2:
        mask[0, -(sizes.tokens // 3) :] = 0
    return mask


def _ids(height: int, width: int) -> torch.Tensor:
    """Of image tokens: [height * width, 3]."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], -1).reshape(-1, 3).float()


# Images as tokens -----------------------------------------------------------------------------------------------

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
        "encoder_hidden_states": _text(sizes, noise),
        "timestep": _steps(sizes, 0.5),
        "img_ids": _ids(sizes.height, sizes.width),
        "txt_ids": torch.zeros(sizes.tokens, 3),
    }


def _flux2(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    found = _packed(sizes, noise)
    for name in ("img_ids", "txt_ids"):
        ids = torch.nn.functional.pad(found[name], (0, 1))
        found[name] = ids.expand(sizes.batch, *ids.shape)
    return {**found, "guidance": _steps(sizes, 3.5)}


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
        "encoder_hidden_states": _text(sizes, noise),
        "encoder_hidden_states_mask": torch.ones(sizes.batch, sizes.tokens, dtype=torch.int64),
        "timestep": _steps(sizes, 0.5),
        "img_shapes": [[(1, sizes.height, sizes.width)]] * sizes.batch,
    }


def _nucleus(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {**_shaped(sizes, noise), "img_shapes": [(1, sizes.height, sizes.width)] * sizes.batch}


def _qwen21(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    text = torch.zeros(sizes.batch, sizes.tokens, dtype=torch.bool)
    image = torch.ones(sizes.batch, sizes.height * sizes.width // 4, dtype=torch.bool)
    return {**_shaped(sizes, noise), "img_mask": torch.cat([text, image], 1)}


def _krea(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    ids = torch.cat([torch.zeros(sizes.tokens, 3), _ids(sizes.height, sizes.width)])
    return {
        "hidden_states": noise(sizes.batch, sizes.height * sizes.width, 4),
        "encoder_hidden_states": noise(sizes.batch, sizes.tokens, 3, WIDTH),
        "timestep": _steps(sizes, 0.5),
        "position_ids": ids,
        "encoder_attention_mask": None,
    }


# Images ---------------------------------------------------------------------------------------------------------


def _image(sizes: Sizes, noise: Noise, channels: int = 4) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, channels, sizes.height, sizes.width),
        "encoder_hidden_states": _text(sizes, noise),
        "timestep": _steps(sizes),
    }


def _z_image(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "x": [noise(4, 1, sizes.height, sizes.width) for _ in range(sizes.batch)],
        "cap_feats": [noise(sizes.tokens, WIDTH) for _ in range(sizes.batch)],
        "t": _steps(sizes, 0.5),
    }


def _masked(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {**_image(sizes, noise), "encoder_attention_mask": _mask(sizes)}


def _pixart(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    added = {"resolution": None, "aspect_ratio": None}
    return {**_image(sizes, noise), "added_cond_kwargs": added, "encoder_attention_mask": _mask(sizes)}


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
        "timestep": _steps(sizes).long(),
        "class_labels": torch.arange(sizes.batch),
    }


# Videos ---------------------------------------------------------------------------------------------------------


def _video(sizes: Sizes, noise: Noise, channels: int = 4) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, channels, sizes.frames, sizes.height, sizes.width),
        "encoder_hidden_states": _text(sizes, noise),
        "timestep": _steps(sizes),
    }


def _hunyuan_video(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        **_video(sizes, noise),
        "encoder_attention_mask": _mask(sizes),
        "pooled_projections": noise(sizes.batch, 8),
        "guidance": _steps(sizes, 6.0),
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
        "encoder_hidden_states": _text(sizes, noise),
        "encoder_attention_mask": _mask(sizes).long(),
        "timestep": _steps(sizes).long(),
        "num_frames": sizes.frames,
        "height": sizes.height,
        "width": sizes.width,
    }


def _ltx2(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        **_ltx(sizes, noise),
        "audio_hidden_states": noise(sizes.batch, 9, 4),
        "audio_encoder_hidden_states": _text(sizes, noise),
        "audio_encoder_attention_mask": _mask(sizes).long(),
        "timestep": _steps(sizes)[:, None],
        "audio_num_frames": 9,
        "fps": 25.0,
    }


def _vace(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    control = noise(sizes.batch, 6, sizes.frames, sizes.height, sizes.width)
    return {**_video(sizes, noise), "control_hidden_states": control}


def _kandinsky(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, sizes.frames, sizes.height, sizes.width, 4),
        "encoder_hidden_states": _text(sizes, noise),
        "timestep": _steps(sizes),
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
    return {**_video(sizes, noise), "encoder_attention_mask": _mask(sizes)}


def _motif(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {**_video(sizes, noise), "encoder_attention_mask": _mask(sizes)}


def _anyflow(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    found = _video(sizes, noise)
    video = found["hidden_states"].transpose(1, 2)
    steps = torch.full((sizes.batch, sizes.frames), 500.0)
    return {**found, "hidden_states": video, "timestep": steps, "r_timestep": steps - 100}


# Sound ----------------------------------------------------------------------------------------------------------


def _music(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, 4, sizes.height),
        "encoder_hidden_states": noise(sizes.batch, sizes.height, WIDTH),
        "timestep": _steps(sizes, 0.5),
    }


def _audio(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, 4 * sizes.height, 4),
        "encoder_hidden_states": _text(sizes, noise),
        "encoder_attention_mask": _mask(sizes),
        "timestep": _steps(sizes, 0.5),
        "latent_cond": noise(sizes.batch, 4 * sizes.height, 4),
    }


def _stable_audio3(sizes: Sizes, noise: Noise) -> dict[str, Any]:
    return {
        "hidden_states": noise(sizes.batch, 4, 4 * sizes.height),
        "encoder_hidden_states": _text(sizes, noise),
        "global_hidden_states": noise(sizes.batch, WIDTH),
        "timestep": _steps(sizes, 0.5),
    }


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
_HUNYUAN = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_layers": 2,
    "num_refiner_layers": 2,
    "text_embed_dim": WIDTH,
    "rope_axes_dim": (4, 4, 8),
}

CASES: dict[str, Case] = {
    one.name: one
    for one in (
        Case("FluxTransformer2DModel", {**_JOINT, "pooled_projection_dim": 16}, _flux, 4),
        Case(
            "Flux2Transformer2DModel",
            {**_JOINT, "axes_dims_rope": (4, 4, 4, 4), "timestep_guidance_channels": 16},
            _flux2,
            4,
        ),
        Case(
            "ChromaTransformer2DModel",
            {**_JOINT, "approximator_num_channels": 8, "approximator_hidden_dim": 16, "approximator_layers": 2},
            _packed,
            4,
        ),
        Case("OvisImageTransformer2DModel", {**_JOINT, "out_channels": 4}, _packed, 4),
        Case("LongCatImageTransformer2DModel", {**_JOINT, "pooled_projection_dim": WIDTH}, _packed, 4),
        Case("BriaTransformer2DModel", _JOINT, _bria, 4),
        Case("BriaFiboTransformer2DModel", {**_JOINT, "text_encoder_dim": 16}, _fibo, 4),
        Case(
            "QwenImageTransformer2DModel",
            {
                "in_channels": 16,
                "out_channels": 4,
                "num_layers": 2,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "joint_attention_dim": WIDTH,
                **_ROPE,
            },
            _shaped,
        ),
        Case(
            "QwenImage21Transformer2DModel",
            {
                "in_channels": 16,
                "out_channels": 16,
                "num_layers": 2,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "context_in_dim": WIDTH,
                **_ROPE,
            },
            _qwen21,
        ),
        Case(
            "NucleusMoEImageTransformer2DModel",
            {
                "in_channels": 16,
                "out_channels": 4,
                "num_layers": 3,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "joint_attention_dim": WIDTH,
                "dense_moe_strategy": "leave_first_block_dense",
                "num_experts": 4,
                "moe_intermediate_dim": 16,
                "capacity_factors": 2.0,
                **_ROPE,
            },
            _nucleus,
            3,
        ),
        Case(
            "Krea2Transformer2DModel",
            {
                "in_channels": 4,
                "num_layers": 2,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "intermediate_size": 32,
                "timestep_embed_dim": 16,
                "text_hidden_dim": WIDTH,
                "num_text_layers": 3,
                "text_num_attention_heads": 2,
                "text_num_key_value_heads": 2,
                "text_intermediate_size": 32,
                **_ROPE,
            },
            _krea,
            6,
        ),
        Case(
            "ZImageTransformer2DModel",
            {
                "in_channels": 4,
                "dim": 32,
                "n_layers": 2,
                "n_heads": 2,
                "n_kv_heads": 2,
                "cap_feat_dim": WIDTH,
                "axes_dims": [4, 4, 8],
                "axes_lens": [512, 32, 32],
            },
            _z_image,
            6,
        ),
        Case(
            "GlmImageTransformer2DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_layers": 2,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "text_embed_dim": WIDTH,
                "time_embed_dim": 16,
                "condition_dim": 16,
                "prior_vq_quantizer_codebook_size": 16,
            },
            _glm,
        ),
        Case(
            "ErnieImageTransformer2DModel",
            {
                "hidden_size": 32,
                "num_attention_heads": 2,
                "num_layers": 2,
                "ffn_hidden_size": 64,
                "in_channels": 4,
                "out_channels": 4,
                "text_in_dim": WIDTH,
                "rope_axes_dim": (4, 4, 8),
            },
            _ernie,
        ),
        Case(
            "HunyuanImageTransformer2DModel",
            {**_HUNYUAN, "num_single_layers": 2, "rope_axes_dim": (8, 8)},
            _hunyuan_image,
            6,
        ),
        Case("WanTransformer3DModel", _WAN, _video),
        Case("SkyReelsV2Transformer3DModel", _WAN, _video),
        Case("ChronoEditTransformer3DModel", _WAN, _video),
        Case("WanVACETransformer3DModel", {**_WAN, "vace_layers": [0, 1], "vace_in_channels": 6}, _vace, 4),
        Case("AnyFlowTransformer3DModel", _WAN, _anyflow),
        Case(
            "HeliosTransformer3DModel",
            {name: value for name, value in _WAN.items() if name != "rope_max_seq_len"} | {"rope_dim": (4, 4, 4)},
            _video,
        ),
        Case(
            "HunyuanVideoTransformer3DModel",
            {**_HUNYUAN, "num_single_layers": 2, "pooled_projection_dim": 8},
            _hunyuan_video,
            6,
        ),
        Case(
            "HunyuanVideo15Transformer3DModel",
            {**_HUNYUAN, "text_embed_2_dim": WIDTH, "image_embed_dim": 16, "target_size": 16, "task_type": "t2v"},
            _hunyuan_video15,
            4,
        ),
        Case(
            "LTXVideoTransformer3DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_attention_heads": 2,
                "attention_head_dim": 12,
                "cross_attention_dim": 24,
                "num_layers": 2,
                "caption_channels": WIDTH,
            },
            _ltx,
        ),
        Case(
            "LTX2VideoTransformer3DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_attention_heads": 2,
                "attention_head_dim": 12,
                "cross_attention_dim": 24,
                "audio_in_channels": 4,
                "audio_out_channels": 4,
                "audio_num_attention_heads": 2,
                "audio_attention_head_dim": 6,
                "audio_cross_attention_dim": 12,
                "num_layers": 2,
                "caption_channels": WIDTH,
                "rope_double_precision": False,
            },
            _ltx2,
        ),
        Case(
            "Kandinsky5Transformer3DModel",
            {
                "in_visual_dim": 4,
                "out_visual_dim": 4,
                "in_text_dim": WIDTH,
                "in_text_dim2": 8,
                "time_dim": 16,
                "model_dim": 32,
                "ff_dim": 64,
                "num_text_blocks": 2,
                "num_visual_blocks": 2,
                "axes_dims": (4, 4, 8),
            },
            _kandinsky,
            4,
        ),
        Case(
            "MotifVideoTransformer3DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_attention_heads": 2,
                "attention_head_dim": 16,
                "num_layers": 2,
                "num_single_layers": 2,
                "text_embed_dim": WIDTH,
                "rope_axes_dim": (4, 4, 8),
            },
            _motif,
            4,
        ),
        Case(
            "JoyImageEditTransformer3DModel",
            {
                "in_channels": 4,
                "hidden_size": 32,
                "num_attention_heads": 2,
                "text_dim": WIDTH,
                "num_layers": 2,
                "rope_dim_list": [4, 4, 8],
            },
            _video,
        ),
        Case(
            "MiniMaxMusic3Transformer1DModel",
            {
                "in_channels": 4,
                "condition_dim": WIDTH,
                "num_layers": 2,
                "num_attention_heads": 2,
                "attention_head_dim": 16,
                "ff_inner_dim": 32,
                "rotary_dim": 8,
                "fourier_embedding_dim": 16,
            },
            _music,
        ),
        Case(
            "LongCatAudioDiTTransformer",
            {"dit_dim": 32, "dit_depth": 2, "dit_heads": 2, "dit_text_dim": WIDTH, "latent_dim": 4},
            _audio,
        ),
        Case(
            "StableAudio3DiTModel",
            {
                "io_channels": 4,
                "embed_dim": 32,
                "depth": 2,
                "num_heads": 2,
                "cond_token_dim": WIDTH,
                "global_cond_dim": WIDTH,
                "timestep_features_dim": 16,
                "num_memory_tokens": 3,
            },
            _stable_audio3,
        ),
        # Classes whose blocks diffusers does not name.
        Case(
            "PixArtTransformer2DModel",
            {
                "num_attention_heads": 2,
                "attention_head_dim": 16,
                "num_layers": 2,
                "cross_attention_dim": 32,
                "caption_channels": WIDTH,
                "sample_size": 8,
                "use_additional_conditions": False,
            },
            _pixart,
        ),
        Case(
            "SanaTransformer2DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_attention_heads": 2,
                "attention_head_dim": 16,
                "num_layers": 2,
                "num_cross_attention_heads": 2,
                "cross_attention_head_dim": 16,
                "cross_attention_dim": 32,
                "caption_channels": WIDTH,
            },
            _masked,
        ),
        Case(
            "Lumina2Transformer2DModel",
            {
                "in_channels": 4,
                "hidden_size": 32,
                "num_layers": 2,
                "num_attention_heads": 2,
                "num_kv_heads": 1,
                "multiple_of": 16,
                "axes_dim_rope": (4, 4, 8),
                "axes_lens": (300, 64, 64),
                "cap_feat_dim": WIDTH,
            },
            _masked,
            6,
        ),
        Case(
            "AuraFlowTransformer2DModel",
            {
                "sample_size": 16,
                "num_mmdit_layers": 2,
                "num_single_dit_layers": 2,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "joint_attention_dim": WIDTH,
                "caption_projection_dim": 32,
                "pos_embed_max_size": 256,
            },
            _image,
            4,
        ),
        Case(
            "CogView4Transformer2DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_layers": 2,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "text_embed_dim": WIDTH,
                "time_embed_dim": 16,
                "condition_dim": 8,
                "rope_axes_dim": (64, 64),
            },
            _sized,
        ),
        Case(
            "CogVideoXTransformer3DModel",
            {
                "num_attention_heads": 2,
                "attention_head_dim": 16,
                "in_channels": 4,
                "out_channels": 4,
                "time_embed_dim": 16,
                "text_embed_dim": WIDTH,
                "num_layers": 2,
                "use_rotary_positional_embeddings": True,
            },
            _cogvideo,
        ),
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
        ),
        Case(
            "DiTTransformer2DModel",
            {
                "num_attention_heads": 2,
                "attention_head_dim": 16,
                "num_layers": 2,
                "sample_size": 8,
                "num_embeds_ada_norm": 10,
            },
            _classes,
        ),
    )
}


# Judged --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """What became of a model's calls.

    Attributes:
        blocks, compiled: how many blocks it has, and how many of them graphs served.
        calls: of blocks by graphs, after the first call of the model.
        eager: calls of blocks after the first call of the model that ran eager, by the code of the reason.
        worst: the largest relative L2 of a call against eager.
    """

    name: str
    blocks: int
    compiled: int
    calls: int
    eager: Mapping[str, int]
    worst: float


def judged(case: Case, sizes: Sequence[Sizes] = (FIRST, *OTHERS), device: str = "cpu") -> Judged:
    """Run a model eager and compiled, after a first call by which its graphs are compiled or restored."""
    from onegraph.pipelines import compile_module

    model, plain = case.model().to(device), case.model().to(device)
    compiled: Any = compile_module(model)
    worst = 0.0
    with torch.no_grad():
        compiled(**moved(case.arguments(), device))
        first = compiled.onegraph.report().components[0].blocks
        for one in sizes:
            arguments = moved(case.arguments(one), device)
            found, wanted = result_of(compiled(**arguments)), result_of(plain(**arguments))
            worst = max(worst, float((found - wanted).norm() / wanted.norm()))
    (report,) = compiled.onegraph.report().components
    eager = Counter(report.blocks["eager_codes"]) - Counter(first["eager_codes"])
    calls = report.blocks["calls"] - first["calls"]
    return Judged(case.name, report.blocks["of"], report.blocks["compiled"], calls, dict(eager), worst)


def moved(value: Any, device: str) -> Any:
    """Arguments on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: moved(one, device) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(moved(one, device) for one in value)
    return value
