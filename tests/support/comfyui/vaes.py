"""Small VAEs of ComfyUI's own classes with seeded weights, as ComfyUI's own VAE object holds them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


def _kl(**config: Any) -> Any:
    from comfy.ldm.models.autoencoder import AutoencoderKL

    made = {**_KL, **config}
    return AutoencoderKL(ddconfig=made, embed_dim=made["z_channels"])


def _hunyuan(name: str, **config: Any) -> Any:
    home = f"comfy.ldm.hunyuan_video.{name}"
    return _engine({**_HUNYUAN, **config}, f"{home}.Decoder", f"{home}.Encoder")


def _made(path: str, **config: Any) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**config)


@dataclass(frozen=True)
class Small:
    """A small VAE.

    Attributes:
        make: makes its module, without weights.
        pixels: of an image per latent unit.
        channels: of its latents.
        dims: of these: 2 or 3.
    """

    make: Callable[[], Any]
    pixels: int = 2
    channels: int = 16
    dims: int = 2


VAES: Mapping[str, Small] = {
    "flux": Small(_image_engine),
    "sd 3": Small(_kl),
    "flux.2": Small(lambda: _kl(z_channels=32, batch_norm_latent=True), pixels=4, channels=128),
    "hunyuan image": Small(
        lambda: _hunyuan("vae", z_channels=32, block_out_channels=[32, 64], ffactor_spatial=2), channels=32
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
    "hunyuan video": Small(lambda: _kl(conv3d=True, time_compress=2), dims=3),
    "hunyuan video 1.5": Small(
        lambda: _hunyuan(
            "vae_refiner", z_channels=32, block_out_channels=[32, 64], ffactor_spatial=2, ffactor_temporal=2
        ),
        channels=32,
        dims=3,
    ),
}


def load(name: str, seed: int = 5) -> Any:
    """One of the VAEs in float32, as ComfyUI's VAE object."""
    import comfy.sd

    small = VAES[name]
    module = small.make()
    with _detected_as(module):
        state = {_DETECTED: torch.zeros(1, small.channels), **_weights(module, seed)}
        vae = comfy.sd.VAE(sd=state, dtype=torch.float32)
    vae.latent_channels, vae.latent_dim = small.channels, small.dims
    if small.dims == 2:
        vae.downscale_ratio = vae.upscale_ratio = small.pixels
    else:
        vae.upscale_ratio = (lambda a: max(0, a * 4 - 3), small.pixels, small.pixels)
        vae.downscale_ratio = (lambda a: max(0, (a + 3) // 4), small.pixels, small.pixels)
        vae.upscale_index_formula = vae.downscale_index_formula = (4, small.pixels, small.pixels)
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
