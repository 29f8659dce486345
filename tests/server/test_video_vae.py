"""A video VAE from a file, by Load VAE: pictures are encoded and decoded as a video, whole and in tiles."""

from __future__ import annotations

from pathlib import Path

import pytest
from headless import host, models, server, workflows
from support.comfyui.installation import environment_of

from .conftest import difference

pytestmark = pytest.mark.full
FILE = "small_wan.safetensors"
FRAMES = 17


def prompt_of(compiled: bool, side: int = 64, tiles: bool = False) -> workflows.Prompt:
    """A video of one colour there and back, through Compile VAE or not."""
    vae = ["compile" if compiled else "load", 0]
    image = {"width": side, "height": side, "batch_size": FRAMES, "color": 0x3366CC}
    choices = {"tile_size": 64, "overlap": 16, "temporal_size": 64, "temporal_overlap": 8}
    choice = {"parts": "decoder", "dynamic_resolution": "auto", "when_missing": "wait", "backend": "inductor"}
    prompt: workflows.Prompt = {
        "load": {"class_type": "VAELoader", "inputs": {"vae_name": FILE}},
        "image": {"class_type": "EmptyImage", "inputs": image},
        "encode": {"class_type": "VAEEncode", "inputs": {"pixels": ["image", 0], "vae": ["load", 0]}},
        "decode": {
            "class_type": "VAEDecodeTiled" if tiles else "VAEDecode",
            "inputs": {"samples": ["encode", 0], "vae": vae, **(choices if tiles else {})},
        },
        "save": {"class_type": "SaveImage", "inputs": {"images": ["decode", 0], "filename_prefix": "video"}},
    }
    if compiled:
        prompt["compile"] = {"class_type": "OneGraphCompileVAE", "inputs": {"vae": ["load", 0], **choice}}
    return prompt


def write_small_wan(path: Path) -> None:
    """Wan 2.1's VAE with 16 channels, whose number its loader reads from the file."""
    host.boot()
    from comfy.ldm.wan.vae import WanVAE
    from safetensors.torch import save_file

    sizes = {"dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": [], "dropout": 0.0}
    module = WanVAE(dim=16, z_dim=16, temperal_downsample=[False, True, True], **sizes)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(models.seeded(module.state_dict(), 3), path)


def test_a_video_is_decoded_by_graphs_in_the_next_process_too(tmp_path: Path) -> None:
    base, environment = server.prepare_base(tmp_path / "comfyui"), environment_of(tmp_path / "home")
    write_small_wan(base / "models/vae" / FILE)
    choices = ({}, {"side": 96}, {"tiles": True, "side": 96})
    with server.running(base, host.comfyui_path(), env=environment) as first:
        wanted = [first.run(prompt_of(False, **choice)) for choice in choices]
        assert all(len(one.images) == FRAMES for one in wanted)
        assert difference(wanted[0], first.run(prompt_of(True))) == 0
        assert first.status()["compiles"] and not first.status()["compiled_calls"]
    with server.running(base, host.comfyui_path(), env=environment) as second:
        for choice, reference in zip(choices, wanted, strict=True):
            assert difference(reference, second.run(prompt_of(True, **choice))) <= 1
            assert second.status()["runs"]["compile:decoder"]["text"].startswith("block graphs: ")
        status = second.status()
        assert (status["compiles"], status["reasons"]) == (0, {}), status["reasons"]
