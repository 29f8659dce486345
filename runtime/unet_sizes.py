"""The sizes that one graph of a diffusion UNet serves, whichever library the UNet is from."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..common.shapes import Dim

PIXELS = 8  # image pixels per latent unit
MOST_BATCH = 8
_SMALLEST, _LARGEST = 8, 256  # latent units
_MOST_TOKENS = 1024


def exact(sizes: Mapping[str, int]) -> tuple[tuple[Dim, ...], str]:
    """Return the dimensions of a graph for one size, and its label.

    Args:
        sizes: `batch`, `height` and `width` in latent units, and `context` in tokens.
    """
    label = f"{sizes['width'] * PIXELS}x{sizes['height'] * PIXELS} batch {sizes['batch']} {sizes['context']} tokens"
    return tuple(Dim(name, size, size) for name, size in sizes.items()), label


def any_size(levels: int, device: torch.device) -> tuple[tuple[Dim, ...], str]:
    """Return the dimensions of a graph for any size, and its label.

    Args:
        levels: resolutions of the UNet, each half of the one before.
    """
    # On a GPU, kernels read wider where sizes are known multiples; on the CPU a step of one costs nothing
    # (measured), and then every size that the UNet takes is served.
    multiple = 2 ** (levels - 1) if device.type == "cuda" else 1
    # At the lowest level at least two rows and columns are left: code for one would be another graph.
    smallest = max(_SMALLEST, 2**levels)
    dims = (
        Dim("batch", 1, MOST_BATCH),
        Dim("height", smallest, _LARGEST, multiple),
        Dim("width", smallest, _LARGEST, multiple),
        Dim("context", 1, _MOST_TOKENS),
    )
    return dims, f"any size {smallest * PIXELS}-{_LARGEST * PIXELS}"
