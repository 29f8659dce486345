"""Families of newer hosts than the one that the set-up fetches, which has no such classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..dit_matrix.sampling import node
from ..models.dits import WIDTH, Dit
from .family import Family
from .images import picture
from .nodes import both, cfg_guider, clip_vision, concat, drawn, fixed, references, sd3
from .videos import video, wan

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
        both(clip_vision(), _poses, concat(16, masked=True)), promised="none",
    ),
}  # fmt: skip
