"""Calls of a pipeline's modules with zeros, at its usual size, so that there are graphs before its first image."""

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
    half(torch.zeros(1, channels, side, side, dtype=vae.dtype, device=vae.device))


def _call_unet(pipe: Any, unet: Any) -> None:
    config, side = unet.config, _side(pipe)
    like = {"dtype": unet.dtype, "device": unet.device}
    dim = config.cross_attention_dim
    context = torch.zeros(2, _TOKENS, dim if isinstance(dim, int) else dim[0], **like)
    given: dict[str, Any] = {}
    if has_text_time(unet):
        ids = 5 if getattr(pipe.config, "requires_aesthetics_score", False) else 6
        pooled = config.projection_class_embeddings_input_dim - ids * config.addition_time_embed_dim
        given["added_cond_kwargs"] = {
            "text_embeds": torch.zeros(2, pooled, **like),
            "time_ids": torch.zeros(2, ids, **like),
        }
    unet(torch.zeros(2, config.in_channels, side, side, **like), 500, context, **given)
