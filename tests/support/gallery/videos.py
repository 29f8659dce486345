"""Families that make videos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..dit_matrix import around, steering, weights
from ..models.dits import _MINIMAX, _WAN, DITS, WIDTH, Dit, _frequencies
from ..scenes.sampling import Sampling, node, settings
from .family import Conds, Family, Sizes
from .images import KANDINSKY
from .nodes import ar_video, both, cfg_guider, clip_vision, concat, drawn, fixed, pooled, references, sd3


def video(channels: int, *frames: int) -> tuple[Sizes, Sizes]:
    first, second = frames or (3, 2)
    return (channels, first, 16, 12), (channels, second, 12, 16)


_NO_CFG = settings(cfg=1.0)
_SKIPPED = {"start_percent": 0.0, "end_percent": 1.0}


def wan(config: str, **unet: Any) -> Dit:
    return Dit(config, {**_WAN, "num_layers": 4, **unet})


def _like(*shape: int | None, name: str, listed: bool = True) -> Conds:
    """A tensor whose sides are the latent's where none is told."""

    def made(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
        inner = [side if side is not None else sizes[number] for number, side in enumerate(shape)]
        value = drawn(generator, *inner)
        return {name: [value] if listed else value}

    return made


def _camera(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {"camera_conditions": drawn(generator, 1, 24, sizes[2], sizes[3] * 8, sizes[4] * 8)}


def _speech(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {
        "audio_embed": drawn(generator, 1, 25, 32, 4 * sizes[2]), "control_video": drawn(generator, 1, *sizes[1:]),
        "reference_motion": drawn(generator, 1, 16, 19, *sizes[3:]),
    }  # fmt: skip


def _human(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {"audio_embed": drawn(generator, 1, sizes[2], 8, 5, 1280)}


def _performer(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    face = drawn(generator, 1, 3, 1 + 4 * (sizes[2] - 1), 512, 512).clamp(-1, 1)
    return {"face_video_pixels": face, "pose_video_latent": drawn(generator, 1, *sizes[1:])}


def _character(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    """A pose at half the resolution, and masks for the reference's frame and the video's."""
    frames, *sides = sizes[2:]
    half = [side // 2 for side in sides]
    return {
        "pose_video_latent": drawn(generator, 1, 16, frames, *half), "ref_mask_flag": False,
        "driving_mask_28ch": drawn(generator, 1, frames, 28, *half),
        "ref_mask_28ch": drawn(generator, 1, frames + 1, 28, *sides),
    }  # fmt: skip


def _context(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    shapes = (1, 16, 1, *sizes[3:]), (1, *sizes[1:])
    return {"context_latents": [drawn(generator, *shape) for shape in shapes]}


def _music(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {"audio_embed": drawn(generator, 1, 24, 35), "fps": 30.0, "audio_inject_scale": 1.0}


def first_frame(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    frame = {"resolved_frame_index": 0, "latent": drawn(generator, 1, 24, 1, *sizes[3:])}
    return {"minimax_keyframes": [frame], "minimax_frame_count": 9}


def pictures(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    """Two reference pictures, the first of another size."""
    sides = [(sizes[3] + 4, sizes[4] - 2), (sizes[3], sizes[4])]
    refs = [
        {"kind": "image", "latent_h": high, "latent_w": wide, "latent": drawn(generator, 1, 24, 1, high, wide)}
        for high, wide in sides
    ]
    return {"minimax_refs": refs}


def _text_mask_of_eight(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {"attention_mask": torch.ones(1, length, dtype=torch.long), "frame_rate": 25}


def _fun(sampling: Sampling) -> None:
    """Guidance by skipped layers, multiplied attention and CFG-Zero*, as Wan 2.1 Fun's templates have them."""
    node(
        "nodes_slg",
        "SkipLayerGuidanceDiT",
        double_layers="2",
        single_layers="2",
        scale=3.0,
        rescaling_scale=0.0,
        **_SKIPPED,
    )(sampling)
    sd3(8.0)(sampling)
    node(
        "nodes_attention_multiply",
        "UNetTemporalAttentionMultiply",
        self_structural=1.0,
        self_temporal=1.0,
        cross_structural=1.2,
        cross_temporal=1.3,
    )(sampling)
    node("nodes_cfg", "CFGZeroStar")(sampling)


_UPSCALER = {
    "image_model": "seedvr2", "vid_dim": 128, "heads": 4, "head_dim": 32, "num_layers": 4, "mm_layers": 2,
    "norm_eps": 1e-5, "mlp_type": "swiglu", "vid_out_norm": True, "txt_in_dim": 5120, "rope_dim": 32,
}  # fmt: skip


def _seedvr(model: Any, number: int) -> torch.Tensor:
    """The texts that SeedVR2's file has."""
    module = model.model.diffusion_model
    text: torch.Tensor = module.positive_conditioning if number == 1 else module.negative_conditioning
    return text.unsqueeze(0).float()


_PRUNED = {
    **{key: value for key, value in _MINIMAX.items() if key not in ("timestep_input_dim", "time_embed_hidden_size")},
    "adaln_curve_grid": 33, "time_embed_dim": 16,
}  # fmt: skip
H3 = Dit("MiniMaxH3", _PRUNED, after=_frequencies)
H3_SIZES: dict[str, Any] = {"sizes": video(24), "audio": ((32, 2, 13), (32, 2, 9)), "graphs": "minimax h3"}
H3_NODES = (around.basic_guider, settings(sampler="res_multistep", steps=3))
_LTX_2 = DITS["ltx 2"]
LTX_23 = Dit(
    "LTXAV",
    {**_LTX_2.unet, "apply_gated_attention": True, "caption_proj_before_connector": True,
     "cross_attention_adaln": True},
    width=128 + 64,
)  # fmt: skip
LTX_SIZES: dict[str, Any] = {
    "sizes": ((128, 3, 8, 6), (128, 2, 6, 8)), "audio": ((8, 11, 16), (8, 7, 16)), "conds": fixed(frame_rate=25),
}  # fmt: skip
LTX_NODES = (cfg_guider, settings(steps=3))
_LTXV = Dit(
    "LTXV",
    {"image_model": "ltxv", "in_channels": 128, "cross_attention_dim": 128, "attention_head_dim": 32,
     "num_attention_heads": 4, "caption_channels": WIDTH, "num_layers": 3},
)  # fmt: skip
_LTXV_REST: dict[str, Any] = {"conds": _text_mask_of_eight, "tokens": ((9, 9), (9, 9)), "graphs": "ltxv"}
_T2V, _I2V = wan("WAN21_T2V"), wan("WAN21_I2V", model_type="i2v", in_dim=36)
_SEEN = both(concat(16, masked=True), clip_vision())
_HUNYUAN = {
    "image_model": "hunyuan_video", "in_channels": 16, "patch_size": [1, 2, 2], "out_channels": 16, "vec_in_dim": 24,
    "axes_dim": [8, 12, 12], "meanflow": False, "context_in_dim": WIDTH, "hidden_size": 128, "mlp_ratio": 4.0,
    "num_heads": 4, "depth": 2, "depth_single_blocks": 3, "theta": 256, "qkv_bias": True, "byt5": False,
    "guidance_embed": True, "use_cond_type_embedding": False, "vision_in_dim": None, "meanflow_sum": False,
}  # fmt: skip
_HUNYUAN_15 = DITS["hunyuan video 1.5"]

_WANS = {
    "wan t2v": Family(_T2V, video(16), (sd3(8.0),)),
    "wan 2.2 t2v": Family(_T2V, video(16), (sd3(5.0), weights.two_experts), graphs="wan t2v"),
    "wan 2.2 i2v": Family(
        _I2V, video(16), (sd3(5.0), weights.two_experts), concat(16, masked=True), graphs="wan t2v"
    ),
    "wan 2.1 i2v": Family(_I2V, video(16), (sd3(8.0),), _SEEN, graphs="wan i2v"),
    "wan 2.1 flf2v": Family(
        wan("WAN21_I2V", model_type="i2v", in_dim=36, flf_pos_embed_token_number=514), video(16), (sd3(8.0),),
        both(concat(16, masked=True), clip_vision(514)), graphs="wan i2v",
    ),
    "wan 2.2 5B": Family(DITS["wan 2.2 5B"], video(48), (sd3(8.0),)),
    "wan 2.2 5B, first frame": Family(
        DITS["wan 2.2 5B"], video(48), (sd3(8.0), steering.first_frame_kept), graphs="wan 2.2 5B"
    ),
    "wan vace": Family(
        wan("WAN21_Vace", model_type="vace", vace_layers=2, vace_in_dim=96), video(16), (sd3(8.0),),
        both(_like(1, 32, None, None, None, name="vace_frames"), _like(1, 64, None, None, None, name="vace_mask"),
             fixed(vace_strength=[0.8])),
    ),
    "wan 2.1 fun control": Family(
        wan("WAN21_FunControl2V", model_type="i2v", in_dim=48), video(16), (_fun,), both(concat(32), clip_vision()),
        graphs="wan i2v",
    ),
    "wan 2.2 fun control": Family(
        wan("WAN21_FunControl2V", in_dim=48), video(16), (sd3(8.0), weights.two_experts), concat(32), graphs="wan t2v"
    ),
    "wan 2.1 fun inpaint": Family(_I2V, video(16), (_fun,), _SEEN, graphs="wan i2v"),
    "wan fun camera": Family(
        wan("WAN21_Camera", model_type="camera", in_dim=32), video(16), (sd3(8.0),),
        both(concat(16), _camera, clip_vision()), graphs="wan i2v",
    ),
    "wan 2.2 fun camera": Family(
        wan("WAN22_Camera", model_type="camera_2.2", in_dim=36), video(16), (sd3(8.0), weights.two_experts),
        both(concat(16, masked=True), _camera), graphs="wan t2v",
    ),
    "wan 2.2 s2v": Family(
        wan("WAN22_S2V", model_type="s2v", audio_inject_layers=[0, 2], audio_dim=32), video(16, 4, 3), (sd3(8.0),),
        both(_speech, references(1, frames=1)), promised="some", codes=("block_small",),
    ),
    "wan humo": Family(
        wan("WAN21_HuMo", model_type="humo", in_dim=36), video(16), (sd3(8.0),), both(_human, references(1, frames=1)),
        promised="none", codes=("waits_for_change",),
    ),
    "wan animate": Family(
        wan("WAN22_Animate", model_type="animate", in_dim=36, num_layers=10), video(16), (sd3(8.0), settings(steps=1)),
        both(_SEEN, _performer),
    ),
    "wan scail 2": Family(
        wan("WAN21_SCAIL2", model_type="scail2", in_dim=20), video(16), (sd3(8.0),),
        both(clip_vision(), references(1, frames=1), _character),
    ),
    "wan dancer": Family(
        wan("WAN22_WanDancer", model_type="wandancer", in_dim=36, audio_inject_layers=[0, 2], music_dim=64,
            music_latent_dim=64),
        video(16),
        (sd3(5.0), node("nodes_slg", "SkipLayerGuidanceDiTSimple", double_layers="2", single_layers="", **_SKIPPED),
         cfg_guider),
        both(_SEEN, clip_vision(name="clip_vision_output_ref"), _music),
    ),
    "wan bernini": Family(_T2V, video(16), (sd3(5.0),), _context, graphs="wan t2v"),
    "wan chronoedit": Family(
        _I2V, video(16),
        (sd3(5.0), node("nodes_rope", "ScaleROPE", scale_x=1.0, shift_x=0.0, scale_y=1.0, shift_y=0.0, scale_t=7.0,
                        shift_t=0.0)),
        _SEEN, graphs="wan i2v",
    ),
    "wan causal": Family(
        wan("WAN21_CausalAR_T2V"), video(16), (sd3(5.0), around.basic_guider, ar_video, _NO_CFG),
        promised="none", codes=("block_recorded", "block_writes"),
    ),
}  # fmt: skip

VIDEOS: dict[str, Family] = {
    "minimax h3 t2v": Family(H3, nodes=H3_NODES, **H3_SIZES),
    "minimax h3 i2v": Family(H3, nodes=H3_NODES, conds=first_frame, **H3_SIZES),
    "minimax h3 r2v": Family(H3, nodes=H3_NODES, conds=pictures, **H3_SIZES),
    "ltx 2": Family(_LTX_2, nodes=LTX_NODES, graphs="ltx 2", **LTX_SIZES),
    "ltx 2, first frame": Family(_LTX_2, nodes=(*LTX_NODES, steering.first_frame_kept), graphs="ltx 2", **LTX_SIZES),
    "ltx 2.3": Family(LTX_23, nodes=LTX_NODES, graphs="ltx 2.3", **LTX_SIZES),
    "ltx 2.3, first frame": Family(
        LTX_23, nodes=(weights.lora(0.5), *LTX_NODES, steering.first_frame_kept), graphs="ltx 2.3", **LTX_SIZES
    ),
    "ltxv": Family(_LTXV, video(128), **_LTXV_REST),
    "ltxv, first frame": Family(_LTXV, video(128), (steering.first_frame_kept,), **_LTXV_REST),
    **_WANS,
    "hunyuan video": Family(
        Dit("HunyuanVideo", _HUNYUAN), video(16), (sd3(7.0), around.basic_guider),
        both(pooled(24), fixed(guidance=6.0)),
    ),
    "hunyuan video 1.5, first frame": Family(
        _HUNYUAN_15, video(32), (sd3(7.0), cfg_guider), both(concat(32, masked=True), clip_vision(9, 40))
    ),
    "hunyuan video 1.5": Family(_HUNYUAN_15, video(32), (sd3(7.0), cfg_guider)),
    "kandinsky 5 video": Family(
        Dit("Kandinsky5", KANDINSKY), video(16), (sd3(5.0),), pooled(24), promised="some", codes=("block_recorded",)
    ),
    "cogvideox inpaint": Family(
        Dit("CogVideoX_Inpaint",
            {"image_model": "cogvideox", "num_attention_heads": 4, "attention_head_dim": 32, "in_channels": 48,
             "out_channels": 16, "time_embed_dim": 64, "text_embed_dim": WIDTH, "num_layers": 3,
             "max_text_seq_length": 9, "use_rotary_positional_embeddings": True}),
        video(16), (cfg_guider,), concat(32), tokens=((9, 9), (9, 9)),
    ),
    "seedvr 2": Family(
        Dit("SeedVR2", _UPSCALER, width=5120), video(16), (_NO_CFG,),
        _like(1, 17, None, None, None, name="condition", listed=False), features=_seedvr,
        promised="none", codes=("block_argument",),
    ),
}  # fmt: skip
