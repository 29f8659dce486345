"""Families of newer hosts than the one that the set-up fetches, which has no such classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..dit_matrix import steering
from ..models.dits import WIDTH, Dit
from ..scenes.sampling import Sampling, node, result_of
from .family import Family
from .images import picture
from .nodes import both, cfg_guider, clip_vision, concat, drawn, fixed, references, sd3, sparse_attention
from .videos import H3, H3_NODES, H3_SIZES, LTX_23, LTX_NODES, LTX_SIZES, first_frame, pictures, video, wan

_QWEN_21 = Dit(
    "QwenImage21",
    {"image_model": "qwen_image21", "in_channels": 64, "out_channels": 64, "num_layers": 3, "attention_head_dim": 32,
     "num_attention_heads": 4, "context_in_dim": WIDTH, "axes_dims_rope": (8, 12, 12)},
)  # fmt: skip


def _cache(device: str = "auto", dtype: str = "default") -> Any:
    return node("nodes_qwen", "QwenImage21Cache", device=device, dtype=dtype)


_pose_cache = node("nodes_wan", "WanAnimate2Cache", device="cpu", dtype="default")


def _poses(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    """Of frames behind the reference's."""
    return {"pose_video_latent": drawn(generator, 1, 16, sizes[2] - 1, *sizes[3:])}


# LTX 2.4 and 2.5: what 0.33.0's class has besides those of 2.3.
_LTX_25 = Dit(
    "LTXAV",
    {**LTX_23.unet, "ff_bias": False, "audio_ff_bias": False,
     "use_keyframes_abs_pos_embedding": True},
    width=LTX_23.width,
)  # fmt: skip


_LTX_25_REST = {**LTX_SIZES, "graphs": "ltx 2.5", "needs": "nodes_lt.LTXVDualCFGGuider"}
_SHIFT = "nodes_minimax_h3.MiniMaxH3SigmaShift"
_FAST_NODES = (
    node("nodes_minimax_h3", "MiniMaxH3SigmaShift", shift_video=10.0, shift_audio=3.0), sparse_attention, *H3_NODES
)  # fmt: skip


def _dual_cfg(sampling: Sampling) -> None:
    sampling.guider = lambda one: result_of(
        "nodes_lt", "LTXVDualCFGGuider", model=one.model, positive=one.positive, negative=one.negative,
        video_cfg=one.cfg, audio_cfg=one.cfg + 2.0 if one.cfg > 1 else 1.0,
    )  # fmt: skip


def _guides(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    """Three frames of the video, among them its last."""
    frames = [
        {"resolved_frame_index": at, "latent": drawn(generator, 1, 24, 1, *sizes[3:])}
        for at in (0, 4, 8 if sizes[2] > 2 else 5)
    ]
    return {"minimax_keyframes": frames}


def _three_layers(module: Any) -> None:
    """Of 36: the class has no sizes to be told."""
    transformer = module.diffusion_transformer.transformer
    del transformer.layers[3:]
    transformer.rotary_pos_emb.inv_freq.copy_(1.0 / 10000 ** (torch.arange(16) / 16))


NEWER = {
    "qwen-image 2.1": Family(_QWEN_21, picture(64), (_cache(),)),
    "qwen-image 2.1, no cache": Family(_QWEN_21, picture(64), (_cache("off"),), graphs="qwen-image 2.1"),
    "qwen-image 2.1 edit": Family(
        _QWEN_21, picture(64), (_cache("cpu"), cfg_guider), both(references(2), fixed(image_slots=[3, 4])),
        graphs="qwen-image 2.1",
    ),
    "qwen-image 2.1 edit, int8 cache": Family(
        _QWEN_21, picture(64), (_cache("auto", "int8"),), references(), graphs="qwen-image 2.1"
    ),
    "wan animate 2": Family(
        wan("WAN_Animate2", model_type="animate2", in_dim=36), video(16), (sd3(8.0), _pose_cache),
        both(clip_vision(), _poses, concat(16, masked=True)), promised="some",
        codes=("block_recorded",),  # a graph for each number of frames
    ),
    "ltx 2.5": Family(_LTX_25, nodes=(*LTX_NODES, _dual_cfg), **_LTX_25_REST),
    "ltx 2.5, first frame": Family(
        _LTX_25, nodes=(*LTX_NODES, _dual_cfg, steering.first_frame_kept), **_LTX_25_REST
    ),
    "minimax music 3": Family(
        Dit("MiniMaxMusic3", {"audio_model": "minimax_music3"}, width=8 * 4096, after=_three_layers),
        ((128, 31), (128, 41)), (), fixed(conditioning_scale=torch.ones(1, 1, 1)), tokens=((9, 9), (12, 12)),
    ),
    "fasth3 t2v": Family(H3, nodes=_FAST_NODES, needs=_SHIFT, **H3_SIZES),
    "fasth3 i2v": Family(H3, nodes=_FAST_NODES, conds=first_frame, needs=_SHIFT, **H3_SIZES),
    "fasth3 r2v": Family(H3, nodes=_FAST_NODES, conds=pictures, needs=_SHIFT, **H3_SIZES),
    "minimax h3 r2v, guides": Family(
        H3, nodes=H3_NODES, conds=both(pictures, _guides), needs="nodes_minimax_h3.MiniMaxH3AddGuide", **H3_SIZES
    ),
}  # fmt: skip
