"""What popular packs do to models behind everybody's back, each in a few lines."""

from __future__ import annotations

import copy

import torch

from .declared import NODES, floating, node


def _pad(module, mode):
    """Let every convolution wrap around or not, in place, as packs for seamless textures do."""
    for child in module.modules():
        if isinstance(child, torch.nn.Conv2d):
            child.padding_mode = mode


@node("Seamless", "MODEL", model="MODEL", mode=["circular", "zeros"], after="LATENT", optional=("after",))
def seamless(model, mode, after=None):
    """Changes the MODEL's own module in place, as SeamlessTile does; with a latent not before that is there."""
    _pad(model.model.diffusion_model, mode)
    return model


@node("SeamlessVAE", "VAE", vae="VAE", way=["in place", "copy"])
def seamless_vae(vae, way):
    """Changes a VAE in place or in a deep copy, as MakeCircularVAE does."""
    if way == "copy":
        vae = copy.deepcopy(vae)
    _pad(vae.first_stage_model, "circular")
    return vae


@node("ForwardReplaced", "MODEL", model="MODEL", factor=floating(0.8))
def forward_replaced(model, factor):
    """Replaces the UNet's _forward around each call, as caches of its first block do."""
    clone = model.clone()
    unet = clone.model.diffusion_model

    def wrapper(apply_model, given):
        original = unet._forward
        unet._forward = lambda *args, **kwargs: factor * original(*args, **kwargs)
        try:
            return apply_model(given["input"], given["timestep"], **given["c"])
        finally:
            del unet._forward

    clone.set_model_unet_function_wrapper(wrapper)
    return clone


_attention = []  # the host's own, while it is replaced


@node("ReplaceAttention", "MODEL", model="MODEL", mode=["replaced", "off"])
def replace_attention(model, mode):
    """Another attention for every model there is, as packs with attention kernels of their own do."""
    import comfy.ldm.modules.attention as attention

    if mode == "replaced" and not _attention:
        before = attention.optimized_attention
        _attention.append(before)
        attention.optimized_attention = lambda *args, **kwargs: before(*args, **kwargs) * 0.5
    elif mode == "off" and _attention:
        attention.optimized_attention = _attention.pop()
    return model


NODES["OneGraphTestReplaceAttention"].IS_CHANGED = classmethod(lambda cls, **inputs: float("nan"))


@node("ReplaceVAEModel", "VAE", vae="VAE")
def replace_vae_model(vae):
    """What Select VAE Device does: a copy of the VAE that runs the patcher's model."""
    changed = copy.copy(vae)
    changed.patcher = changed.patcher.clone()
    changed.first_stage_model = changed.patcher.model
    return changed
