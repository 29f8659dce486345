"""Calls of a pipeline's modules with noise, at its usual size, so that there are graphs before its first image.

With noise and not with zeros, because a new graph is compared with eager at its first call: layers that divide by the
spread of a constant image magnify rounding.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .component import Component
from .families.unet import has_text_time

_TOKENS = 77
_USUAL_SIDE = 64  # latent units, where the pipeline names none


@torch.no_grad()
def first_calls(pipe: Any, components: Mapping[str, Component]) -> None:
    """Call each component once, on the device and in the dtype that the pipeline would."""
    for name in components:
        owner = getattr(pipe, name.partition(".")[0])
        if name.endswith(".encoder") and "image" not in inspect.signature(pipe.__call__).parameters:
            continue
        if "." in name:
            with _as_it_runs(owner):
                _call_half(pipe, owner, getattr(owner, name.rpartition(".")[2]), name.endswith(".decoder"))
        else:
            _call_unet(pipe, owner)


def _noise(*shape: int, like: Any) -> torch.Tensor:
    """Normal numbers on the device and in the dtype of a model. The user's random numbers stay as they are."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)


def _side(pipe: Any) -> int:
    unet = getattr(pipe, "unet", None)
    side = getattr(getattr(unet, "config", None), "sample_size", None)
    return side if isinstance(side, int) else _USUAL_SIDE


@contextlib.contextmanager
def _as_it_runs(vae: Any) -> Iterator[None]:
    """A VAE that overflows in float16 runs in float32, in every pipeline."""
    upcasts = vae.dtype == torch.float16 and getattr(vae.config, "force_upcast", False)
    if upcasts:
        vae.to(torch.float32)
    try:
        yield
    finally:
        if upcasts:
            vae.to(torch.float16)


def _call_half(pipe: Any, vae: Any, half: torch.nn.Module, decodes: bool) -> None:
    factor = 1 if decodes else 2 ** (len(vae.config.block_out_channels) - 1)
    channels = vae.config.latent_channels if decodes else vae.config.in_channels
    side = _side(pipe) * factor
    half(_noise(1, channels, side, side, like=vae))


def _call_unet(pipe: Any, unet: Any) -> None:
    config, side = unet.config, _side(pipe)
    dim = config.cross_attention_dim
    context = _noise(2, _TOKENS, dim if isinstance(dim, int) else dim[0], like=unet)
    given: dict[str, Any] = {}
    if has_text_time(unet):
        ids = 5 if getattr(pipe.config, "requires_aesthetics_score", False) else 6
        pooled = config.projection_class_embeddings_input_dim - ids * config.addition_time_embed_dim
        given["added_cond_kwargs"] = {
            "text_embeds": _noise(2, pooled, like=unet),
            "time_ids": 100 * _noise(2, ids, like=unet).abs(),
        }
    unet(_noise(2, config.in_channels, side, side, like=unet), 500, context, **given)
