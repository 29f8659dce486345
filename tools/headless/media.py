"""Prompts beside those of images, with models small enough for tests: a video is decoded, a text is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import host, models
from .workflows import Prompt

VIDEO_VAE = "small_wan.safetensors"
FRAMES = 17
_SAMPLING = {"temperature": 0.9, "top_k": 64, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05}
_TILES = {"tile_size": 64, "overlap": 16, "temporal_size": 64, "temporal_overlap": 8}


def write_video_vae(path: Path) -> None:
    """Write Wan 2.1's VAE with 16 channels, whose number its loader reads from the file."""
    host.boot()
    from comfy.ldm.wan.vae import WanVAE
    from safetensors.torch import save_file

    sizes: dict[str, Any] = {"dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": [], "dropout": 0.0}
    module = WanVAE(dim=16, z_dim=16, temperal_downsample=[False, True, True], **sizes)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(models.seeded(module.state_dict(), 3), path)


def video(
    compiled: bool, side: int = 64, tiles: bool = False, color: int = 0x3366CC, when_missing: str = "wait"
) -> Prompt:
    """A video of one colour there and back, through Compile VAE, node `video`, or not."""
    vae = ["video" if compiled else "load", 0]
    image = {"width": side, "height": side, "batch_size": FRAMES, "color": color}
    choices = {"parts": "decoder", "dynamic_resolution": "auto", "when_missing": when_missing, "backend": "inductor"}
    prompt: Prompt = {
        "load": {"class_type": "VAELoader", "inputs": {"vae_name": VIDEO_VAE}},
        "image": {"class_type": "EmptyImage", "inputs": image},
        "encode": {"class_type": "VAEEncode", "inputs": {"pixels": ["image", 0], "vae": ["load", 0]}},
        "decode": {
            "class_type": "VAEDecodeTiled" if tiles else "VAEDecode",
            "inputs": {"samples": ["encode", 0], "vae": vae, **(_TILES if tiles else {})},
        },
        "save": {"class_type": "SaveImage", "inputs": {"images": ["decode", 0], "filename_prefix": "video"}},
    }
    if compiled:
        prompt["video"] = {"class_type": "OneGraphCompileVAE", "inputs": {"vae": ["load", 0], **choices}}
    return prompt


def text(compiled: bool, words: str, length: int = 24, seed: int = 1, when_missing: str = "wait") -> Prompt:
    """A text that goes on from some words, through Compile CLIP, node `text`, or not."""
    choices = {"parts": "generation", "when_missing": when_missing, "backend": "inductor"}
    prompt: Prompt = {
        "load": {"class_type": "OneGraphTestSmallText", "inputs": {"seed": 3}},
        "write": {
            "class_type": "TextGenerate",
            "inputs": {
                "clip": ["text" if compiled else "load", 0],
                "prompt": words,
                "max_length": length,
                "sampling_mode": "on",
                **{f"sampling_mode.{name}": value for name, value in (_SAMPLING | {"seed": seed}).items()},
            },
        },
        "show": {"class_type": "PreviewAny", "inputs": {"source": ["write", 0]}},
    }
    if compiled:
        prompt["text"] = {"class_type": "OneGraphCompileCLIP", "inputs": {"clip": ["load", 0], **choices}}
    return prompt
