"""Families that make pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from headless import models

from ..dit_matrix import around, inside, steering, weights
from ..models.dits import _FLUX, DITS, WIDTH, Dit
from ..scenes.sampling import Sampling, node, settings
from .family import Family, Sizes
from .nodes import (
    aura,
    both,
    cfg_guider,
    cfg_norm,
    concat,
    differential,
    drawn,
    dual_cfg_guider,
    fixed,
    flux_shift,
    pooled,
    references,
    sd3,
    text_mask,
)  # fmt: skip


def picture(channels: int, *frames: int) -> tuple[Sizes, Sizes]:
    return (channels, *frames, 16, 24), (channels, *frames, 20, 12)


PIXELS = (3, 128, 96), (3, 96, 160)  # of models without a VAE
_NO_CFG = settings(cfg=1.0)
_SAME_LENGTH = ((9, 9), (12, 12))


def _hidream(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {"pooled_output": drawn(generator, 1, 40), "conditioning_llama3": drawn(generator, 1, 5, 11, WIDTH)}


def _concat_first(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {"concat_latent_image": drawn(generator, 1, *sizes[1:])}


def _tokens(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {"text_input_ids": torch.randint(0, 1000, (1, length), generator=generator)}


def _upscaled(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    low = drawn(generator, 1, 16, sizes[2] // 32, sizes[3] // 32)
    return {"lq_latent": low, "degrade_sigma": torch.tensor([0.3])}


def _ideogram_guider(sampling: Sampling) -> None:
    """Two models, and another CFG at the end."""
    node("nodes_custom_sampler", "CFGOverride", cfg=2.0, start_percent=0.7, end_percent=1.0)(sampling)
    around.dual_model(sampling)


_LUMINA = {
    "image_model": "lumina2", "patch_size": 2, "in_channels": 16, "dim": 96, "cap_feat_dim": WIDTH, "n_layers": 3,
    "n_refiner_layers": 2, "qk_norm": True, "n_heads": 4, "n_kv_heads": 2, "axes_dims": [8, 8, 8],
    "axes_lens": [300, 512, 512], "rope_theta": 10000.0, "ffn_dim_multiplier": 4.0,
}  # fmt: skip
_HIDREAM = {
    "image_model": "hidream", "attention_head_dim": 32, "axes_dims_rope": [16, 8, 8],
    "caption_channels": [WIDTH, WIDTH], "max_resolution": [128, 128], "in_channels": 16,
    "llama_layers": [0, 1, 2, 3, 4, 4, 4], "num_attention_heads": 4, "num_routed_experts": 4,
    "num_activated_experts": 2, "num_layers": 3, "num_single_layers": 4, "out_channels": 16, "patch_size": 2,
    "text_emb_dim": 40,
}  # fmt: skip
_HIDREAM_O1 = {
    "image_model": "hidream_o1",
    "text_config_overrides": {
        "vocab_size": 152000, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rope_dims": [6, 5, 5],
    },
    "vision_config_overrides": {
        "hidden_size": 64, "num_heads": 4, "depth": 2, "intermediate_size": 96, "num_hidden_layers": 2,
    },
}  # fmt: skip
_OMNIGEN = {
    "image_model": "omnigen2", "axes_dim_rope": [8, 12, 12], "axes_lens": [1024, 1664, 1664],
    "ffn_dim_multiplier": None, "hidden_size": 128, "in_channels": 16, "multiple_of": 32, "norm_eps": 1e-5,
    "num_attention_heads": 4, "num_kv_heads": 2, "num_layers": 3, "num_refiner_layers": 2, "out_channels": None,
    "patch_size": 2, "text_feat_dim": WIDTH, "timestep_scale": 1000.0,
}  # fmt: skip
_BOOGU = {
    "image_model": "boogu", "hidden_size": 128, "num_layers": 3, "num_double_stream_layers": 2,
    "num_refiner_layers": 2, "instruction_feat_dim": WIDTH, "num_attention_heads": 4, "num_kv_heads": 2,
    "multiple_of": 32, "axes_dim_rope": [8, 12, 12],
}  # fmt: skip
_RADIANCE = {
    **{key: value for key, value in _FLUX.items() if key != "guidance_embed"}, "image_model": "chroma_radiance",
    "in_channels": 3, "out_channels": 3, "in_dim": 64, "out_dim": 128, "hidden_dim": 64, "n_layers": 2,
    "vec_in_dim": None, "patch_size": 16, "nerf_hidden_size": 64, "nerf_mlp_ratio": 4, "nerf_depth": 4,
    "nerf_max_freqs": 8, "nerf_tile_size": 512, "nerf_final_head_type": "conv", "nerf_embedder_dtype": torch.float32,
    "use_x0": True, "use_sequential_txt_ids": False,
}  # fmt: skip
_PIXELDIT = {
    "image_model": "pixeldit_t2i", "num_groups": 4, "hidden_size": 128, "pixel_attn_hidden_size": 64,
    "pixel_num_groups": 4, "patch_depth": 3, "pixel_depth": 2, "txt_embed_dim": WIDTH,
}  # fmt: skip
_KANDINSKY = {
    "image_model": "kandinsky5", "model_dim": 128, "axes_dims": (8, 12, 12), "time_dim": 64, "ff_dim": 256,
    "visual_embed_dim": 132, "num_text_blocks": 2, "num_visual_blocks": 3, "in_text_dim": WIDTH, "in_text_dim2": 24,
}  # fmt: skip
_LONGCAT = {
    **_FLUX, "guidance_embed": False, "vec_in_dim": None, "txt_ids_dims": [1, 2], "context_in_dim": 3584,
}  # fmt: skip
_MAGE = {
    "image_model": "mage_flow", "in_channels": 128, "out_channels": 128, "num_layers": 3, "attention_head_dim": 32,
    "num_attention_heads": 4, "joint_attention_dim": WIDTH, "axes_dims_rope": (8, 12, 12),
}  # fmt: skip
_FLUX_2, _Z, _QWEN = DITS["flux 2"], DITS["z-image"], DITS["qwen-image"]
_LAYERED = {**_QWEN.unet, "use_additional_t_cond": True}

_FLUXES = {
    "flux": Family(DITS["flux"], picture(16), (_NO_CFG,)),
    "flux redux": Family(
        DITS["flux"], picture(16), (flux_shift, around.basic_guider, steering.style(29)), graphs="flux"
    ),
    "flux uso": Family(DITS["flux"], picture(16), (_NO_CFG, inside.style_reference), graphs="flux"),
    "flux schnell": Family(DITS["flux schnell"], picture(16), (settings(steps=4, cfg=1.0),)),
    "flux kontext": Family(DITS["flux"], picture(16), (_NO_CFG,), references(1), graphs="flux"),
    "flux fill": Family(
        DITS["flux fill"], picture(16), (steering.inpainted(), differential, _NO_CFG), concat(16, masked=True),
        graphs="flux",
    ),
    "flux canny": Family(
        Dit("Flux", {**_FLUX, "in_channels": 32}, conds=DITS["flux"].conds), picture(16), (_NO_CFG,), concat(16),
        graphs="flux",
    ),
    "flux 2": Family(_FLUX_2, picture(128), (around.basic_guider,), both(fixed(guidance=4.0), references(1))),
    "flux 2 klein": Family(_FLUX_2, picture(128), (cfg_guider,), graphs="flux 2"),
    "flux 2 klein edit": Family(_FLUX_2, picture(128), (cfg_guider,), references(1), graphs="flux 2"),
    "flux 2 klein kv": Family(
        _FLUX_2, picture(128), (inside.kv_cache, cfg_guider, settings(steps=4, cfg=1.0)), references(1),
        cfg=False, promised="none", codes=("block_option", "waits_for_change"),
    ),
    "chroma": Family(
        DITS["chroma"], picture(16), (aura(1.0), cfg_guider), promised="some", codes=("block_small",)
    ),
    "chroma radiance": Family(
        Dit("ChromaRadiance", _RADIANCE), PIXELS,
        (node("nodes_chroma_radiance", "ChromaRadianceOptions", preserve_wrapper=True, start_sigma=1.0, end_sigma=0.0,
              nerf_tile_size=32, force_sequential_txt_ids=False), aura(1.0), cfg_guider),
        promised="some", codes=("block_small",), furthest=2e-5,
    ),
    "ovis": Family(
        Dit("Flux", {**_FLUX, "guidance_embed": False, "yak_mlp": True, "txt_norm": True, "vec_in_dim": None,
                     "txt_ids_dims": [1, 2]}),
        picture(16), (aura(3.0),),
    ),
    "longcat": Family(Dit("LongCatImage", _LONGCAT, width=3584), picture(16), (cfg_norm,)),
    "longcat edit": Family(
        Dit("LongCatImage", _LONGCAT, width=3584), picture(16), (cfg_norm,), references(1), graphs="longcat"
    ),
}  # fmt: skip

_QWENS = {
    "qwen-image": Family(_QWEN, picture(16, 1), (aura(3.1),)),
    "qwen-image diffsynth": Family(
        _QWEN, picture(16, 1), (aura(3.1), inside.diffsynth(1.0)), graphs="qwen-image"
    ),
    "qwen-image controlnet": Family(
        _QWEN, picture(16, 1), (aura(3.1), steering.residuals(128, ("input",))), graphs="qwen-image"
    ),
    "qwen-image-edit": Family(_QWEN, picture(16, 1), (aura(3.0), cfg_norm), references(1), graphs="qwen-image"),
    "qwen-image-edit 2509": Family(_QWEN, picture(16, 1), (aura(3.0), cfg_norm), references(2), graphs="qwen-image"),
    "qwen-image-edit 2511": Family(
        _QWEN, picture(16, 1), (aura(3.1), cfg_norm), references(2, "index_timestep_zero")
    ),
    "qwen-image layered": Family(
        Dit("QwenImage", _LAYERED), ((16, 3, 16, 24), (16, 2, 20, 12)), (aura(1.0),), references(1, frames=1)
    ),
}  # fmt: skip

_OTHERS = {
    "z-image": Family(_Z, picture(16), (aura(3.0), settings(sampler="res_multistep", steps=3))),
    "z-image fun controlnet": Family(
        _Z, picture(16), (inside.fun_control(1.0), aura(3.0), _NO_CFG), graphs="z-image"
    ),
    "krea 2": Family(DITS["krea 2"], picture(16, 1), (_NO_CFG,)),
    "krea 2 style reference": Family(
        DITS["krea 2"], picture(16, 1), (weights.lora(1.0), flux_shift, cfg_guider), references(1), graphs="krea 2"
    ),
    "anima": Family(DITS["anima"], picture(16, 1)),
    "lumina 2": Family(Dit("Lumina2", _LUMINA), picture(16), (aura(6.0), settings(sampler="res_multistep", steps=3))),
    "newbie": Family(
        Dit("Lumina2", {**_LUMINA, "clip_text_dim": 40}), picture(16),
        (aura(6.0), settings(sampler="res_multistep", steps=3)), pooled(40),
    ),
    "hidream i1": Family(
        Dit("HiDream", _HIDREAM), picture(16), (sd3(3.0),), _hidream, tokens=_SAME_LENGTH, promised="some",
        codes=("block_small",),
    ),
    "hidream e1": Family(
        Dit("HiDream", _HIDREAM), picture(16), (cfg_norm, dual_cfg_guider), both(_hidream, _concat_first),
        tokens=_SAME_LENGTH, graphs="hidream i1", promised="some", codes=("block_small",),
    ),
    "hidream o1": Family(
        Dit("HiDreamO1", _HIDREAM_O1), ((3, 128, 160), (3, 96, 128)),
        (node("nodes_model_advanced", "ModelNoiseScale", noise_scale=8.0),
         node("nodes_hidream_o1", "HiDreamO1PatchSeamSmoothing", start_percent=0.0, end_percent=1.0,
              pattern="single_shift", blend="average", passes="2", strength=1.0)),
        _tokens,
    ),
    "hidream o1 dev": Family(
        Dit("HiDreamO1", _HIDREAM_O1), ((3, 128, 160), (3, 96, 128)),
        (node("nodes_model_advanced", "ModelNoiseScale", noise_scale=7.5), _NO_CFG), _tokens, graphs="hidream o1",
    ),
    "omnigen 2": Family(Dit("Omnigen2", _OMNIGEN), picture(16), (dual_cfg_guider,), text_mask),
    "omnigen 2 edit": Family(
        Dit("Omnigen2", _OMNIGEN), picture(16), (dual_cfg_guider,), both(text_mask, references(1)), graphs="omnigen 2"
    ),
    "boogu": Family(Dit("Boogu", _BOOGU), picture(16), (), text_mask),
    "boogu edit": Family(
        Dit("Boogu", _BOOGU), picture(16), (aura(3.0),), both(text_mask, references(1)), graphs="boogu"
    ),
    "ideogram 4": Family(
        Dit("Ideogram4",
            {"image_model": "ideogram4", "in_channels": 128, "num_layers": 3, "num_attention_heads": 4,
             "attention_head_dim": 32, "intermediate_size": 256, "adaln_dim": 64, "llm_features_dim": WIDTH,
             "mrope_section": (6, 5, 5)}),
        picture(128), (_ideogram_guider,),
    ),
    "lens": Family(
        Dit("Lens",
            {"image_model": "lens", "in_channels": 128, "out_channels": 32, "num_layers": 3, "attention_head_dim": 32,
             "num_attention_heads": 4, "enc_hidden_dim": WIDTH, "axes_dims_rope": (8, 12, 12),
             "multi_layer_encoder_feature": True, "selected_layer_index": (0, 1, 2, 3)}, width=4 * WIDTH),
        picture(128), (flux_shift, cfg_norm),
    ),
    "mage flow": Family(Dit("MageFlow", _MAGE), picture(128)),
    "mage flow edit": Family(Dit("MageFlow", _MAGE), picture(128), (), references(1), graphs="mage flow"),
    "joyimage edit": Family(
        Dit("JoyImage",
            {"image_model": "joyimage", "patch_size": [1, 2, 2], "in_channels": 16, "hidden_size": 128,
             "num_attention_heads": 4, "text_dim": WIDTH, "num_layers": 3, "rope_dim_list": [8, 12, 12]}),
        picture(16, 1), (cfg_norm,), references(1),
    ),
    "ernie": Family(
        Dit("ErnieImage",
            {"image_model": "ernie", "hidden_size": 128, "num_attention_heads": 4, "num_layers": 3,
             "ffn_hidden_size": 256, "text_in_dim": WIDTH, "rope_axes_dim": (8, 12, 12)}),
        picture(128),
    ),
    "sd 3.5": Family(DITS["sd 3.5"], picture(16)),
    "kandinsky 5 image": Family(
        Dit("Kandinsky5Image", {**_KANDINSKY, "visual_embed_dim": 64, "rope_scale_factor": (1.0, 1.0, 1.0)}),
        picture(16), (sd3(3.0),), pooled(24), promised="some", codes=("block_recorded",),
    ),
    "pixeldit": Family(Dit("PixelDiTT2I", _PIXELDIT), PIXELS),
    "pid": Family(
        Dit("PiD", {**_PIXELDIT, "image_model": "pid", "lq_hidden_dim": 32, "lq_latent_channels": 16,
                    "latent_spatial_down_factor": 8}),
        PIXELS, (), _upscaled, promised="none", codes=("waits_for_change",),
    ),
}  # fmt: skip


def _unet(config: str, name: str, width: int, *nodes: Any, **sizes: Any) -> Family:
    """A UNet, which is one graph as a whole."""
    sizes = {**models._COMMON, **models.config(name), "num_heads": -1, "num_head_channels": 32, **sizes}
    return Family(Dit(config, sizes, width=width), picture(4), nodes, pooled(1280), tokens=((77, 77), (77, 77)))


_UNETS = {
    "sdxl": _unet("SDXL", "tiny_sdxl", 2048),
    "sdxl refiner": _unet("SDXLRefiner", "tiny_refiner", 1280),
    "lotus": _unet("LotusD", "tiny_sdxl", 1024, around.basic_guider, context_dim=1024, adm_in_channels=4),
}

KANDINSKY = _KANDINSKY
IMAGES: dict[str, Family] = {**_FLUXES, **_QWENS, **_OTHERS, **_UNETS}
