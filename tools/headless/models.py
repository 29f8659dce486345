"""SD 1.5-, SDXL- and refiner-class checkpoints with seeded weights, for ComfyUI's own loaders: small ones for tests,
full-size SDXL for benchmarks.

The small families are none of ComfyUI's own, so every process that loads them calls `register()` first (the
server does it through the test-only node pack in tests/nodes). No checkpoint carries a text encoder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

_COMMON: dict[str, Any] = {
    "use_checkpoint": False,
    "image_size": 32,
    "use_spatial_transformer": True,
    "legacy": False,
    "in_channels": 4,
    "out_channels": 4,
    "use_temporal_resblock": False,
    "use_temporal_attention": False,
    "transformer_depth_middle": 1,
}
_SDXL_LIKE: dict[str, Any] = {
    "num_res_blocks": [1, 1],
    "channel_mult": [1, 2],
    "transformer_depth": [0, 1],
    "transformer_depth_output": [0, 0, 0, 1],
    "use_linear_in_transformer": True,
    "num_head_channels": 32,
    "num_classes": "sequential",
}
_ONE_LEVEL: dict[str, Any] = {
    "model_channels": 32,
    "num_res_blocks": [1],
    "channel_mult": [1],
    "transformer_depth": [1],
    "transformer_depth_output": [1, 1],
    "use_linear_in_transformer": False,
    "context_dim": 768,
    "num_heads": 4,
    "num_head_channels": -1,
}
UNETS: dict[str, dict[str, Any]] = {
    "tiny_sd15": {
        "model_channels": 32,
        "num_res_blocks": [1, 1],
        "channel_mult": [1, 2],
        "transformer_depth": [1, 0],
        "transformer_depth_output": [1, 1, 0, 0],
        "use_linear_in_transformer": False,
        "context_dim": 768,
        "num_heads": 4,
        "num_head_channels": -1,
    },
    # Two of SD 1.5's relatives, of one level so that they compile fast.
    "tiny_inpaint": {**_ONE_LEVEL, "in_channels": 9},
    "tiny_ip2p": {**_ONE_LEVEL, "in_channels": 8},
    "tiny_sdxl": {**_SDXL_LIKE, "model_channels": 64, "context_dim": 2048, "adm_in_channels": 2816},
    "tiny_refiner": {**_SDXL_LIKE, "model_channels": 64, "context_dim": 1280, "adm_in_channels": 2560},
    # Stable Video Diffusion's kind: frames of one video are computed together.
    "tiny_svd": {
        **_SDXL_LIKE,
        "model_channels": 64,
        "in_channels": 8,
        "context_dim": 1024,
        "adm_in_channels": 768,
        "use_temporal_resblock": True,
        "use_temporal_attention": True,
        "extra_ff_mix_layer": True,
        "use_spatial_context": True,
        "merge_strategy": "learned_with_images",
        "merge_factor": 0.0,
        "video_kernel_size": [3, 1, 1],
    },
    # The demo's: deeper transformers, as in SDXL itself, where most of the time goes.
    "small_sdxl": {
        **_SDXL_LIKE,
        "model_channels": 64,
        "context_dim": 2048,
        "adm_in_channels": 2816,
        "transformer_depth": [0, 2],
        "transformer_depth_output": [0, 0, 2, 2],
        "transformer_depth_middle": 2,
        "num_head_channels": 16,
    },
    # As deep as SDXL itself, so that a graph of it is worth compiling in regions.
    "deep_sdxl": {
        **_SDXL_LIKE,
        "model_channels": 64,
        "context_dim": 2048,
        "adm_in_channels": 2816,
        "transformer_depth": [0, 10],
        "transformer_depth_output": [0, 0, 10, 10],
        "transformer_depth_middle": 10,
    },
}
# As comfy/model_detection.py lists them.
FULL_SIZE: dict[str, dict[str, Any]] = {
    "sdxl_base": {
        "model_channels": 320,
        "num_res_blocks": [2, 2, 2],
        "channel_mult": [1, 2, 4],
        "transformer_depth": [0, 0, 2, 2, 10, 10],
        "transformer_depth_middle": 10,
        "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
        "use_linear_in_transformer": True,
        "num_head_channels": 64,
        "num_classes": "sequential",
        "context_dim": 2048,
        "adm_in_channels": 2816,
    },
    "sdxl_refiner": {
        "model_channels": 384,
        "num_res_blocks": [2, 2, 2, 2],
        "channel_mult": [1, 2, 4, 4],
        "transformer_depth": [0, 0, 4, 4, 4, 4, 0, 0],
        "transformer_depth_middle": 4,
        "transformer_depth_output": [0, 0, 0, 4, 4, 4, 4, 4, 4, 0, 0, 0],
        "use_linear_in_transformer": True,
        "num_head_channels": 64,
        "num_classes": "sequential",
        "context_dim": 1280,
        "adm_in_channels": 2560,
    },
}


def config(name: str) -> dict[str, Any]:
    """What distinguishes a UNet, small or full-size, from others of UNetModel."""
    return UNETS[name] if name in UNETS else FULL_SIZE[name]


# ComfyUI's own. Of the width, it fixes the encoder's and reads the decoder's from the file.
VAE: dict[str, Any] = {
    "double_z": True,
    "z_channels": 4,
    "resolution": 256,
    "in_channels": 3,
    "out_ch": 3,
    "ch": 128,
    "ch_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "attn_resolutions": [],
    "dropout": 0.0,
}


def register() -> None:
    """Make ComfyUI recognise the small families: their configurations come first in its list of models."""
    import comfy.supported_models as supported

    if any(m.__name__ == "OneGraphTinySDXL" for m in supported.models):
        return

    class OneGraphTinySD15(supported.SD15):
        unet_config = {**supported.SD15.unet_config, "model_channels": 32}
        unet_extra_config = {"num_heads": 4, "num_head_channels": -1}

    class OneGraphTinyInstructPix2Pix(supported.SD15_instructpix2pix):
        unet_config = {**supported.SD15_instructpix2pix.unet_config, "model_channels": 32}
        unet_extra_config = {"num_heads": 4, "num_head_channels": -1}

    class OneGraphTinySDXL(supported.SDXL):
        unet_config = {**supported.SDXL.unet_config, "model_channels": 64, "transformer_depth": [0, 1]}
        unet_extra_config = {"num_heads": -1, "num_head_channels": 32}

    class OneGraphSmallSDXL(supported.SDXL):
        unet_config = {**supported.SDXL.unet_config, "model_channels": 64, "transformer_depth": [0, 2]}
        unet_extra_config = {"num_heads": -1, "num_head_channels": 16}

    class OneGraphDeepSDXL(supported.SDXL):
        unet_config = {**supported.SDXL.unet_config, "model_channels": 64, "transformer_depth": [0, 10]}
        unet_extra_config = {"num_heads": -1, "num_head_channels": 32}

    class OneGraphTinyRefiner(supported.SDXLRefiner):
        unet_config = {**supported.SDXLRefiner.unet_config, "model_channels": 64, "transformer_depth": [0, 1]}
        unet_extra_config = {"num_heads": -1, "num_head_channels": 32}

    class OneGraphTinySVD(supported.SVD_img2vid):
        unet_config = {**supported.SVD_img2vid.unet_config, "model_channels": 64, "transformer_depth": [0, 1]}
        unet_extra_config = {**supported.SVD_img2vid.unet_extra_config, "num_head_channels": 32}

    supported.models[:0] = [
        OneGraphTinyInstructPix2Pix,
        OneGraphTinySD15,
        OneGraphTinySDXL,
        OneGraphSmallSDXL,
        OneGraphDeepSDXL,
        OneGraphTinyRefiner,
        OneGraphTinySVD,
    ]


def unet(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """ComfyUI's UNetModel in one of the sizes, weights uninitialised (or without storage on `meta`)."""
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    built: torch.nn.Module = UNetModel(
        **{**_COMMON, **config(name)}, dtype=dtype, device=device, operations=comfy.ops.disable_weight_init
    )
    return built.eval().requires_grad_(False)


def seeded(state: dict[str, torch.Tensor], seed: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    """float16 weights with sane activations: 0.7/sqrt(fan-in) matrices, norms near one, biases near zero.

    Drawn on `device`, where other numbers come out of the same seed; the result is in system memory.
    """
    generator = torch.Generator(device).manual_seed(seed)
    out = {}
    for name in sorted(state):
        shape = state[name].shape
        if len(shape) <= 1:
            value = 0.02 * torch.randn(shape, generator=generator, device=device) + float(name.endswith("weight"))
        else:
            drawn = torch.randn(shape, generator=generator, device=device)
            value = drawn * (0.7 / max(1, state[name][0].numel()) ** 0.5)
        out[name] = value.half().contiguous().cpu()
    return out


def _vae(parts: str, width: int, device: str) -> dict[str, torch.Tensor]:
    """The VAE's `decoder`, `both` parts or `none`, with a decoder of that many channels (ComfyUI's own: 128)."""
    if parts == "none":
        return {}
    from comfy.ldm.models.autoencoder import AutoencoderKL

    with torch.device("meta"):
        vae = AutoencoderKL(ddconfig=VAE, embed_dim=4, decoder_ddconfig={**VAE, "ch": width})
    weights = seeded(vae.state_dict(), 7, device)
    if parts == "decoder":
        weights = {k: v for k, v in weights.items() if not k.startswith(("encoder.", "quant_conv"))}
    return weights


def write_checkpoint(name: str, path: Path, seed: int = 1, vae: str = "decoder", device: str = "cpu") -> Path:
    """Write one of the models as a .safetensors checkpoint; one that exists is kept.

    `vae`: `decoder` (with a small UNet 10 to 20 MB in all), `both` (70 MB more, for the encoder) or `none`. `device` is
    where the weights are drawn: full-size ones take minutes on a CPU.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    recipe = {"format": "pt", "onegraph.recipe": f"{seed} {vae} {config(name)}"}
    if path.is_file():
        with safe_open(path, "pt") as known:
            if known.metadata() == recipe:
                return path
    weights = seeded(unet(name, "meta").state_dict(), seed, device)
    state = {"model.diffusion_model." + k: v for k, v in weights.items()}
    width = 128 if name in FULL_SIZE else 32
    state |= {"first_stage_model." + k: v for k, v in _vae(vae, width, device).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(state, partial, metadata=recipe)
    partial.replace(path)
    return path


def write_overflowing(source: Path, path: Path) -> Path:
    """The checkpoint with a VAE whose activations leave float16's range, as those of SDXL's own VAE do."""
    from safetensors.torch import load_file, save_file

    state = load_file(source)
    state["first_stage_model.post_quant_conv.weight"] *= 3e4  # a normalisation takes it away again
    save_file(state, path)
    return path


def write_float8(source: Path, path: Path) -> Path:
    """The checkpoint with its UNet in float8, as such files are passed around: plain e4m3 values without scales."""
    from safetensors.torch import load_file, save_file

    state = load_file(source)
    for name in [n for n in state if n.startswith("model.diffusion_model.")]:
        state[name] = state[name].to(torch.float8_e4m3fn)
    save_file(state, path)
    return path


def write_lora(name: str, path: Path, seed: int = 3, scale: float = 1.0) -> Path:
    """A rank-4 LoRA on attention and feed-forward projections, strong enough to change the image."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    state = {}
    for key, weight in unet(name, "meta").state_dict().items():
        if not key.endswith("attn1.to_v.weight") and not key.endswith("ff.net.2.weight"):
            continue
        out_features, in_features = weight.shape
        down = torch.randn(4, in_features, generator=generator) / in_features**0.5
        up = torch.randn(out_features, 4, generator=generator) * scale
        state["diffusion_model." + key.removesuffix(".weight") + ".lora_down.weight"] = down.half()
        state["diffusion_model." + key.removesuffix(".weight") + ".lora_up.weight"] = up.half()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path)
    return path
