"""SeedVR2's VAE: what its convolutions keep of one chunk for the next, and the sizes that it computes in one piece."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from ...common import reasons
from ...signature import views
from ..comfyui import contract

_MODULE = "comfy.ldm.seedvr.vae"
_MOST_KEPT = 2  # frames that a convolution keeps
_MOST_PADDED = 2  # rows or columns that one adds


class Block(views.Keyed):
    """A residual block, or one that makes frames larger or smaller.

    A convolution whose input would take more than a limit computes it in pieces, and so does a normalisation. Which
    pieces, the host's code tells for each size, so that no graph has any: such calls are refused.
    """

    def __init__(self) -> None:
        super().__init__("memory_cache", {"memory_state": f"{_MODULE}:MemoryState"})

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        if _in_pieces(block, next(iter(named.values()))):
            raise views.UnservedCallError(reasons.BlockInPieces())
        return super().open(block, named)


def _in_pieces(block: Any, x: Any) -> bool:
    """Whether a layer of a block may compute its input in pieces when the block is given `x` [B, C, T, H, W]."""
    from comfy.ldm.seedvr import vae

    if not isinstance(x, torch.Tensor) or x.ndim != 5:
        raise TypeError("no frames")
    batch, _, frames, height, width = x.shape
    if isinstance(block, vae.Upsample3D):
        frames, height, width = (
            frames * block.temporal_ratio, height * block.spatial_ratio, width * block.spatial_ratio
        )  # fmt: skip
    sides = (frames + _MOST_KEPT) * (height + _MOST_PADDED) * (width + _MOST_PADDED)
    return any(
        batch * one.in_channels * sides * x.element_size() / 1024**3 >= min(one.memory_limit, vae.get_norm_limit())
        for one in block.modules()
        if isinstance(one, vae.InflatedCausalConv3d)
    )


@contextlib.contextmanager
def whole_inputs() -> Iterator[None]:
    """Have all inputs computed at once: no graph could ask how large one is, and larger ones never come to a graph."""
    if contract.missing(contract.SEEDVR):
        yield
        return
    from comfy.ldm.seedvr import vae

    space: Any = vae
    before = vae.math, vae.get_norm_limit
    space.math = SimpleNamespace(**{**vars(math), "prod": lambda sides: 0})  # of which it makes how large an input is
    space.get_norm_limit = lambda: math.inf
    try:
        yield
    finally:
        space.math, space.get_norm_limit = before


def register() -> None:
    """Have these blocks compiled."""
    for name in ("ResnetBlock3D", "Upsample3D", "Downsample3D"):
        views.register(f"{_MODULE}:{name}", Block())
    for name in ("UpDecoderBlock3D", "DownEncoderBlock3D"):
        views.register_holder(f"{_MODULE}:{name}")
