"""The sizes that one graph of a diffusion UNet serves, whichever library the UNet is from."""

from __future__ import annotations

import torch

from ..family import Axis

PIXELS = 8  # image pixels per latent unit
MOST_BATCH = 8
_SMALLEST, _LARGEST, _LARGEST_OF_ALL = 8, 256, 512  # latent units
_MOST_TOKENS = 1024


def any_size(levels: int, device: torch.device, height: int, width: int) -> tuple[tuple[Axis, ...], str]:
    """The axes batch, height, width and context of a graph for any size, and its label.

    On a GPU there are two such graphs: one for the usual sizes, where kernels read wider because sizes are known
    multiples, and one for every size, which is compiled when a size comes that the first does not serve, so that it
    costs the usual ones nothing. On the CPU a step of one costs nothing (measured).

    Args:
        levels: resolutions of the UNet, each half of the one before.
        height, width: of the call at hand, latent units.
    """
    # The multiple of latent units that all levels divide evenly, and the smallest usual size.
    step, smallest = 2 ** (levels - 1), max(_SMALLEST, 2**levels)
    label, largest = "any size", _LARGEST
    usual = all(not size % step and smallest <= size <= _LARGEST for size in (height, width))
    if device.type == "cuda" and not usual:
        # At the lowest level at least two rows and columns are left: code for one would be another graph.
        step, smallest, largest = 1, 2 ** (levels - 1) + 1, _LARGEST_OF_ALL
        label = f"every multiple of {PIXELS} pixels"
    elif device.type != "cuda":
        step = 1
    axes = (
        Axis("batch", 1, MOST_BATCH, text="batch {}"),
        Axis("height", smallest, largest, step, PIXELS),
        Axis("width", smallest, largest, step, PIXELS),
        # On a GPU, torch's attention asks whether there is a single key. Where it is given the prompt's length as it is
        # (in diffusers, and in ComfyUI 0.38), torch.export refuses a range with both answers.
        Axis("context", 2 if device.type == "cuda" else 1, _MOST_TOKENS, text="{} tokens"),
    )
    return axes, f"{label} {smallest * PIXELS}-{largest * PIXELS}"
