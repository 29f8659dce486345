"""Which VAEs are compiled, and which of their files can only decode."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ..common import reasons
from ..common.reasons import Reason
from .module_proxy import plain

log = logging.getLogger("onegraph.host")

_PREFIXES = ("first_stage_model.", "vae.", "")  # of a VAE's weights in a checkpoint, in diffusers' files, in a VAE file


def unsupported(vae: Any) -> Reason | None:
    """Why this VAE passes through unchanged, or None."""
    module: Any = plain(getattr(vae, "first_stage_model", None))
    name = type(module).__name__
    if getattr(vae, "latent_dim", 2) != 2:
        return reasons.VideoVae(name)
    if getattr(vae, "handles_tiling", False) or getattr(module, "comfy_has_chunked_io", False):
        return reasons.OwnTiling(name)
    return unsupported_module(module)


def unsupported_module(module: Any) -> Reason | None:
    """Why this module is none that is compiled, or None; other nodes may exchange parts of it at any time."""
    from comfy.ldm.models.autoencoder import AutoencoderKL, AutoencodingEngine
    from comfy.ldm.modules.diffusionmodules import model as blocks
    from comfy.taesd.taesd import TAESD

    name = type(module).__name__
    if type(module) is TAESD:
        return None
    if type(module) not in (AutoencoderKL, AutoencodingEngine):
        return reasons.NotACompilableVae(name)
    if type(module.encoder) is not blocks.Encoder or type(module.decoder) is not blocks.Decoder:
        return reasons.UnusualVae(name)
    if getattr(module, "bn", None) is not None or getattr(module, "max_batch_size", None) is not None:
        return reasons.NormalisedLatents(name)
    return None


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
    found = [p for p in _PREFIXES if any(name.startswith(f"{p}decoder.") for name in names)]
    return not found or any(name.startswith(f"{found[0]}encoder.") for name in names)
