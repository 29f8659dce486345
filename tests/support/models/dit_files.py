"""Files of small diffusion transformers, of which ComfyUI's own loader makes a MODEL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..dit_matrix.weights import lora_of
from . import dits, gguf_files, quantised


@dataclass(frozen=True)
class Sizes:
    """What the loader takes for granted of a family.

    Attributes:
        unet: what the diffusion model is made with, besides what `dits` says.
        features: of a text's token; 0: as `dits` says.
    """

    unet: Mapping[str, Any] = field(default_factory=dict)
    features: int = 0


# From comfy/model_detection.py: heads of 128, widths that are no tensor's shape.
SIZES = {
    "flux": Sizes({"num_heads": 1, "axes_dim": [16, 56, 56]}),
    "flux 2": Sizes({"num_heads": 1, "axes_dim": [32, 32, 32, 32]}),
    "wan 2.1 t2v": Sizes({"num_heads": 1, "freq_dim": 256, "text_dim": 4096}, features=4096),
    "sd 3.5": Sizes(),
}


def write(name: str, model: Path, lora: Path, layers: str = "") -> None:
    """Write a model's file and that of a LoRA for it.

    Args:
        layers: a format of `quantised.FORMATS`, or a type of GGUF where the file is one; empty: float32.
    """
    import comfy.utils

    unet, is_gguf = SIZES[name].unet, model.suffix == ".gguf"
    whole = not layers or is_gguf
    made = dits.load(name, dtype=torch.float32, **unet) if whole else quantised.load(name, layers, **unet)
    state = made.model.diffusion_model.state_dict()
    if is_gguf:
        gguf_files.write(state, model, name, gguf_files.KINDS[layers])
    else:
        comfy.utils.save_torch_file({key: one.contiguous() for key, one in state.items()}, str(model))
    plain = dits.load(name, dtype=torch.float32, **unet)
    comfy.utils.save_torch_file(lora_of(plain), str(lora))
