"""The sizes that one graph of a diffusion UNet serves, whichever library the UNet is from."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..common.shapes import Dim

PIXELS = 8  # image pixels per latent unit
MOST_BATCH = 8
_SMALLEST, _LARGEST, _LARGEST_OF_ALL = 8, 256, 512  # latent units
_MOST_TOKENS = 1024


def exact(sizes: Mapping[str, int]) -> tuple[tuple[Dim, ...], str]:
    """Return the dimensions of a graph for one size, and its label.

    Args:
        sizes: `batch`, `height` and `width` in latent units, and `context` in tokens.
    """
    label = f"{sizes['width'] * PIXELS}x{sizes['height'] * PIXELS} batch {sizes['batch']} {sizes['context']} tokens"
    return tuple(Dim(name, size, size) for name, size in sizes.items()), label


def serves_every_size(levels: int, device: torch.device, sizes: Mapping[str, int]) -> bool:
    """Whether a call needs the graph for every size, which on a GPU is another one than that for the usual sizes.

    There, kernels read wider where sizes are known multiples; on the CPU a step of one costs nothing (measured).
    """
    step, smallest = _steps(levels)
    usual = all(not size % step and smallest <= size <= _LARGEST for size in (sizes["height"], sizes["width"]))
    return device.type == "cuda" and not usual


def any_size(
    levels: int, device: torch.device, sizes: Mapping[str, int], fewest_tokens: int = 1
) -> tuple[tuple[Dim, ...], str]:
    """Return the dimensions of a graph for any size, and its label.

    On a GPU there are two such graphs, see `serves_every_size`. The second is compiled when a size comes that the first
    does not serve, so that it costs the usual sizes nothing.

    Args:
        levels: resolutions of the UNet, each half of the one before.
        sizes: of the call at hand, as `exact` takes them.
    """
    step, smallest = _steps(levels)
    label, largest = "any size", _LARGEST
    if serves_every_size(levels, device, sizes):
        # At the lowest level at least two rows and columns are left: code for one would be another graph.
        step, smallest, largest = 1, 2 ** (levels - 1) + 1, _LARGEST_OF_ALL
        label = f"every multiple of {PIXELS} pixels"
    elif device.type != "cuda":
        step = 1
    dims = (
        Dim("batch", 1, MOST_BATCH),
        Dim("height", smallest, largest, step),
        Dim("width", smallest, largest, step),
        Dim("context", fewest_tokens, _MOST_TOKENS),
    )
    return dims, f"{label} {smallest * PIXELS}-{largest * PIXELS}"


def _steps(levels: int) -> tuple[int, int]:
    """The multiple of latent units that all levels divide evenly, and the smallest size of the usual graph."""
    return 2 ** (levels - 1), max(_SMALLEST, 2**levels)
