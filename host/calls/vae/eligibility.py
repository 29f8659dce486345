"""Which VAEs are compiled, what other nodes did to one since, and which of their files can only decode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ....common import reasons
from ....common.errors import in_brief
from ....common.log import logger
from ....common.reasons import Reason
from ...families import Half, VaeHalf, half_of, vae_blocks
from ...families.vae import HALVES, Layout
from ...weights import paged_weights
from ..module_proxy import plain
from .proxy import VaeProxy

log = logger("host")

_PREFIXES = ("first_stage_model.", "vae.", "")  # of a VAE's weights in a checkpoint, in diffusers' files, in a VAE file


def halves_of(vae: Any) -> Mapping[Half, VaeHalf] | Reason:
    """The families of both halves of a VAE; none: its blocks are compiled. Or why it passes through unchanged."""
    module: Any = plain(getattr(vae, "first_stage_model", None))
    found = _families(vae, module)
    by_blocks = vae_blocks.compiles(module, getattr(vae, "latent_dim", 2))
    return {} if isinstance(found, Reason) and by_blocks else found


def _families(vae: Any, module: Any) -> Mapping[Half, VaeHalf] | Reason:
    name, dims = type(module).__name__, getattr(vae, "latent_dim", 2)
    if getattr(vae, "handles_tiling", False) or getattr(module, "comfy_has_chunked_io", False):
        return reasons.OwnTiling(name)
    families: dict[Half, VaeHalf] = {}
    for half in HALVES:
        family = half_of(module, half)
        if isinstance(family, Reason):
            return family if dims == 2 else reasons.VideoVae(name)
        layout = family.layout(module)
        if isinstance(layout, Layout) and layout.dims != dims + 2:
            return reasons.VideoVae(name)
        families[half] = family
    return families


def replaced(part: Half, vae: Any) -> Reason:
    """Why the proxy was not asked in a whole decode or encode."""
    method = "decode" if part == "decoder" else "encode"
    module = getattr(vae, "first_stage_model", None)
    if isinstance(module, VaeProxy) and method in vars(module):
        return reasons.VaeMethodReplaced(method)
    return reasons.VaeMethodReplaced("first_stage_model")


def changed(patcher: Any, module: torch.nn.Module, family: VaeHalf | None) -> Reason | None:
    """What other nodes have done to the VAE since it came through our node that no graph can serve, or None.

    Args:
        family: None: its blocks are compiled, each of which is looked at by itself.
    """
    try:
        if paged_weights.is_paged(patcher) and plain(patcher.model) is not module:
            return reasons.VaeCopied()
        return None if family is None else family.refusal(module)
    except Exception as error:  # never into the queue
        return reasons.NotInspected("VAE", type(error).__name__, in_brief(error))


def has_encoder(path: Path | None) -> bool:
    """Whether the file holds an encoder; False only when it holds a decoder and no encoder beside it."""
    if path is None or path.suffix != ".safetensors":
        return True
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
    except Exception as error:  # not a safetensors file after all
        log.debug("cannot read the names in %s: %s", path, error)
        return True
    prefixes = [p for p in _PREFIXES if any(name.startswith(f"{p}decoder.") for name in names)]
    return not prefixes or any(name.startswith(f"{prefixes[0]}encoder.") for name in names)
