"""Small VAEs of ComfyUI's own classes with seeded weights, as ComfyUI's own VAE object holds them."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from headless import models

_KL: dict[str, Any] = {
    "double_z": True,
    "z_channels": 16,
    "resolution": 256,
    "in_channels": 3,
    "out_ch": 3,
    "ch": 32,
    "ch_mult": [1, 2],
    "num_res_blocks": 1,
    "attn_resolutions": [],
    "dropout": 0.0,
}
_BLOCKS = "comfy.ldm.modules.diffusionmodules.model"
_GAUSSIAN = {"target": "comfy.ldm.models.autoencoder.DiagonalGaussianRegularizer"}
_WAN: dict[str, Any] = {
    "z_dim": 16,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "attn_scales": [],
    "temperal_downsample": [False, True],
    "dropout": 0.0,
}
_DETECTED = "taesd_decoder.1.weight"  # by which ComfyUI recognises the smallest of its VAEs
_LTX_HOME = "comfy.ldm.lightricks.vae.causal_video_autoencoder"
_LTX: dict[str, Any] = {
    "dims": 3,
    "latent_channels": 128,
    "encoder_blocks": [["res_x", {"num_layers": 2}], ["compress_all_res", {"multiplier": 2}], ["res_x", 1]],
    "decoder_blocks": [["res_x", 2], ["compress_all", {"residual": True, "multiplier": 2}], ["res_x", 1]],
    "encoder_base_channels": 16,
    "decoder_base_channels": 16,
    "norm_layer": "pixel_norm",
    "patch_size": 4,
    "latent_log_var": "uniform",
}
_COSMOS: dict[str, Any] = {
    "z_channels": 16, "latent_channels": 16, "z_factor": 1, "resolution": 64, "in_channels": 3, "out_channels": 3,
    "channels": 16, "channels_mult": [2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [32], "dropout": 0.0,
    "patch_size": 4, "num_groups": 1, "temporal_compression": 8, "spacial_compression": 8,
}  # fmt: skip
_HUNYUAN: dict[str, Any] = {"in_channels": 3, "out_channels": 3, "num_res_blocks": 1}


def _engine(config: Mapping[str, Any], decoder: str, encoder: str) -> Any:
    from comfy.ldm.models.autoencoder import AutoencodingEngine

    return AutoencodingEngine(
        regularizer_config=_GAUSSIAN,
        encoder_config={"target": encoder, "params": config},
        decoder_config={"target": decoder, "params": config},
    )


def _image_engine(**config: Any) -> Any:
    return _engine({**_KL, **config}, f"{_BLOCKS}.Decoder", f"{_BLOCKS}.Encoder")


def kl(**config: Any) -> Any:
    from comfy.ldm.models.autoencoder import AutoencoderKL

    made = {**_KL, **config}
    return AutoencoderKL(ddconfig=made, embed_dim=made["z_channels"])


def hunyuan(name: str, **config: Any) -> Any:
    home = f"comfy.ldm.hunyuan_video.{name}"
    return _engine({**_HUNYUAN, **config}, f"{home}.Decoder", f"{home}.Encoder")


def _made(path: str, **config: Any) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**config)


def _h3() -> Any:
    """With two of the decoder's 36 blocks, which its class does not let one choose."""
    import comfy.ldm.minimax.vae as home

    decoder = functools.partial(home.ViT3DDecoder, num_layers=2, heads=2, dim_head=32, num_register_tokens=2)
    sizes = {"space_down": (2, 2), "time_down": (2, 2), "ch_mult": (1, 2), "num_res_blocks": 2}
    with mock.patch.object(home, "ViT3DDecoder", decoder):
        return home.MiniMaxH3VideoVAE(ch=32, tile_size=32, tile_overlap_min=8, **sizes)


def _seedvr() -> Any:
    """With fewer channels and layers, which its class does not let one choose either."""
    import comfy.ldm.seedvr.vae as home

    made = functools.partialmethod(home.VideoAutoencoderKL.__init__, layers_per_block=1, norm_num_groups=8)
    with (
        mock.patch.object(home, "BYTEDANCE_BLOCK_OUT_CHANNELS", (8, 8, 16, 16)),
        mock.patch.object(home.VideoAutoencoderKL, "__init__", made),
    ):
        return home.VideoAutoencoderKLWrapper()


def _audio(**config: Any) -> Any:
    from comfy.ldm.audio.vae_sa3 import SA3AudioVAE

    return SA3AudioVAE(channels=32, **config)


@dataclass(frozen=True)
class Small:
    """A small VAE.

    Attributes:
        make: makes its module, without weights.
        pixels: of an image per latent unit.
        channels: of its latents.
        dims: of these: 2 or 3; 1 of audio.
        frames: of a video per latent one.
        tiles: whether the VAE tiles its own work.
    """

    make: Callable[[], Any]
    pixels: int = 2
    channels: int = 16
    dims: int = 2
    frames: int = 2
    tiles: bool = False


VAES: Mapping[str, Small] = {
    "flux": Small(_image_engine),
    "sd 3": Small(kl),
    "flux.2": Small(lambda: kl(z_channels=32, batch_norm_latent=True), pixels=4, channels=128),
    "hunyuan image": Small(
        lambda: hunyuan("vae", z_channels=32, block_out_channels=[32, 64], ffactor_spatial=2), channels=32
    ),
    "taesd flux": Small(lambda: _made("comfy.taesd.taesd.TAESD", latent_channels=16), pixels=8),
    "taesd flux.2": Small(lambda: _made("comfy.taesd.taesd.TAESD", latent_channels=128), pixels=16, channels=128),
    "wan 2.1": Small(
        lambda: _made("comfy.ldm.wan.vae.WanVAE", dim=16, image_channels=3, conv_out_channels=3, **_WAN),
        pixels=4,
        dims=3,
    ),
    "wan 2.2": Small(
        lambda: _made("comfy.ldm.wan.vae2_2.WanVAE", dim=16, dec_dim=16, **{**_WAN, "z_dim": 48}),
        pixels=8,
        channels=48,
        dims=3,
    ),
    "hunyuan video": Small(lambda: kl(conv3d=True, time_compress=2), dims=3),
    "hunyuan video 1.5": Small(
        lambda: hunyuan(
            "vae_refiner", z_channels=32, block_out_channels=[32, 64], ffactor_spatial=2, ffactor_temporal=2
        ),
        channels=32,
        dims=3,
    ),
    "ltx": Small(lambda: _made(f"{_LTX_HOME}.VideoVAE", config=_LTX), pixels=8, channels=128, dims=3),
    "cosmos": Small(
        lambda: _made("comfy.ldm.cosmos.vae.CausalContinuousVideoTokenizer", **_COSMOS), pixels=8, dims=3, frames=8
    ),
    "minimax h3": Small(_h3, pixels=4, channels=24, dims=3, frames=4, tiles=True),
    "stable audio 3 small": Small(
        lambda: _audio(
            transformer_depths=4,
            sinusoidal_blocks=0,
            decoder_conv_mapping=True,
            chunk_size=32,
            chunk_midpoint_shift=True,
        ),
        pixels=4096,
        channels=256,
        dims=1,
    ),
    "stable audio 3": Small(
        lambda: _audio(transformer_depths=4, sinusoidal_blocks=3, sliding_window=[1, 1]),
        pixels=4096,
        channels=256,
        dims=1,
    ),
    "seedvr 2": Small(_seedvr, pixels=8, dims=3, frames=4, tiles=True),
}


def load(name: str, seed: int = 5) -> Any:
    """One of the VAEs in float32, as ComfyUI's VAE object."""
    small = VAES[name]
    module = small.make()
    return held(module, small, _weights(module, seed), torch.float32)


def held(module: torch.nn.Module, small: Small, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Any:
    """ComfyUI's VAE object of a module."""
    import comfy.sd

    with _detected_as(module):
        vae = comfy.sd.VAE(sd={_DETECTED: torch.zeros(1, small.channels), **weights}, dtype=dtype)
    vae.latent_channels, vae.latent_dim = small.channels, small.dims
    vae.handles_tiling = small.tiles
    if small.dims != 3:
        vae.downscale_ratio = vae.upscale_ratio = small.pixels
        if small.dims == 1:
            vae.process_input = vae.process_output = lambda audio: audio
            vae.output_channels, vae.pad_channel_value = 2, "replicate"
            vae.memory_used_decode = vae.memory_used_encode = lambda shape, dtype: 1 << 20
    else:
        times = small.frames
        vae.upscale_ratio = (lambda a: max(0, a * times - times + 1), small.pixels, small.pixels)
        vae.downscale_ratio = (lambda a: max(0, (a + times - 1) // times), small.pixels, small.pixels)
        vae.upscale_index_formula = vae.downscale_index_formula = (times, small.pixels, small.pixels)
    return vae


def _weights(module: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    state = module.state_dict()
    drawn = {key: one.float() for key, one in models.seeded(state, seed).items()}
    for key in [key for key in drawn if key.endswith("running_var")]:
        drawn[key] = 1 + drawn[key].abs()
    return {key: one.to(state[key].dtype) for key, one in drawn.items()}


@contextlib.contextmanager
def _detected_as(module: Any) -> Iterator[None]:
    """Have ComfyUI's VAE take this module for the smallest that it detects."""
    import comfy.taesd.taesd as home

    before = home.TAESD
    home.TAESD = lambda **config: module  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        home.TAESD = before


def latents(name: str, height: int, width: int, batch: int = 1, frames: int = 1, seed: int = 0) -> torch.Tensor:
    """Latents of one of the VAEs."""
    small = VAES[name]
    shape = (batch, small.channels, *((frames,) * (small.dims - 2)), height, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def images(name: str, height: int, width: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    """Images [B,H,W,3] whose latents are of this height and width."""
    pixels = VAES[name].pixels
    shape = (batch, height * pixels, width * pixels, 3)
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))
