"""ComfyUI's VAE: what its halves take, which sizes a graph serves, and why none may."""

from __future__ import annotations

from typing import Any

import torch

from ...common import reasons
from ...common.errors import in_brief
from ...common.reasons import Reason
from ...common.shapes import Dim, ShapeRange, TensorSpec
from ...runtime.unet_sizes import PIXELS
from .. import compile_client, dynamic_vram
from ..module_proxy import plain
from ..vae_eligibility import unsupported_module
from ..vae_finite import Part
from ..vae_proxy import VaeProxy

SMALLEST, LARGEST = 2, 256  # latent units; tiles leave slim remainders at the borders
FIRST_SIDE = 32  # the same, of the call for which a graph is preloaded
COMPONENTS: dict[Part, str] = {"decoder": compile_client.VAE_DECODER, "encoder": compile_client.VAE_ENCODER}


def shape_range(part: Part, x: torch.Tensor, exact: bool, levels: int) -> tuple[ShapeRange, str, dict[str, int]]:
    """One image at a time: more make no difference to a VAE's speed, and a large batch would double its memory."""
    _, channels, height, width = x.shape
    sizes = {"height": height, "width": width}
    unit = 1 if part == "decoder" else PIXELS
    if exact:
        dims = tuple(Dim(name, size, size) for name, size in sizes.items())
        label = f"{width * PIXELS // unit}x{height * PIXELS // unit}"
    else:
        dims = tuple(Dim(name, SMALLEST * unit, LARGEST * unit, levels) for name in sizes)
        label = f"any size {SMALLEST * PIXELS}-{LARGEST * PIXELS}"
    dtype = str(x.dtype).removeprefix("torch.")
    return ShapeRange(dims, (TensorSpec("x", (1, channels, "height", "width"), dtype),)), label, sizes


def call_bytes(part: Part, vae: Any, x: torch.Tensor) -> int:
    """What decoding or encoding one image takes by the host's own estimate; 0: it has none."""
    try:
        estimate = vae.memory_used_decode if part == "decoder" else vae.memory_used_encode
        return int(estimate((1, *x.shape[1:]), x.dtype))
    except Exception:  # of the host's own
        return 0


def replaced(part: Part, vae: Any) -> Reason:
    """Why the proxy was not asked in a whole decode or encode."""
    method = "decode" if part == "decoder" else "encode"
    module = getattr(vae, "first_stage_model", None)
    if isinstance(module, VaeProxy) and method in vars(module):
        return reasons.VaeMethodReplaced(method)
    return reasons.VaeMethodReplaced("first_stage_model")


def changed(patcher: Any, module: torch.nn.Module) -> Reason | None:
    """What other nodes have done to the VAE since it came through our node that no graph can serve, or None."""
    try:
        if dynamic_vram.is_paged(patcher) and plain(patcher.model) is not module:
            return reasons.VaeCopied()
        return unsupported_module(module)
    except Exception as error:  # never into the queue
        return reasons.NotInspected("VAE", type(error).__name__, in_brief(error))
