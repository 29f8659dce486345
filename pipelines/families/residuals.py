"""What a ControlNet adds to a UNet's skips and to its middle, as inputs of the UNet's graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.refused import Refused
from ...runtime.family import Input
from .family import Tensors, noise, plain

_DOWN, _MIDDLE = "down_block_additional_residuals", "mid_block_additional_residual"
ARGUMENTS = frozenset({_DOWN, _MIDDLE})  # of a UNet's call
_SIDES = ("height", "width")
MIDDLE = "residual_middle"  # an input's name


@dataclass(frozen=True)
class BlockLocation:
    """Where a UNet adds a residual: its input's name, the channels, and the UNet's height divided by its own."""

    name: str
    channels: int
    over: int

    def size(self, sample: torch.Tensor) -> tuple[int, ...]:
        """The residual's shape for a call with these latents."""
        height, width = (-(-size // self.over) for size in sample.shape[2:])
        return sample.shape[0], self.channels, height, width


def locations(unet: Any) -> list[BlockLocation]:
    """All locations of a UNet in the order in which its call takes them: the skips, then the middle."""
    levels, over = [(unet.conv_in.out_channels, 1)], 1
    for block in unet.down_blocks:
        levels += [(resnet.out_channels, over) for resnet in block.resnets]
        if block.downsamplers is not None:
            over *= 2
            levels.append((block.downsamplers[0].out_channels, over))
    skips = [BlockLocation(f"residual_{number}", *one) for number, one in enumerate(levels)]
    return [*skips, BlockLocation(MIDDLE, *levels[-1])]


def taken(unet: Any, call: Mapping[str, Any], sample: torch.Tensor) -> dict[str, torch.Tensor] | Refused:
    """The residuals of a call by name; empty where there are none.

    Some of a T2I-Adapter's come without one for the middle; the UNet adds those elsewhere.
    """
    down, middle = call.get(_DOWN), call.get(_MIDDLE)
    if down is None and middle is None:
        return {}
    if not isinstance(down, Sequence) or middle is None:
        return Refused(reasons.ResidualInputs(_DOWN))
    wanted, tensors = locations(unet), plain([*down, middle])
    if tensors is None:
        return Refused(reasons.NotPlainInputs())
    if [tuple(tensor.shape) for tensor in tensors] != [location.size(sample) for location in wanted]:
        return Refused(reasons.ResidualInputs(_DOWN))
    return {location.name: tensor for location, tensor in zip(wanted, tensors, strict=True)}


def usual(unet: Any, sample: torch.Tensor) -> dict[str, Any]:
    """Noise as a ControlNet's residuals for a call with these latents, as the UNet's call takes them."""
    *skips, middle = (noise(*location.size(sample), like=unet) for location in locations(unet))
    return {_DOWN: tuple(skips), _MIDDLE: middle}


def inputs(unet: Any) -> list[Input]:
    """The residuals among a graph's inputs."""
    return [
        Input(
            location.name,
            (
                "batch",
                location.channels,
                *(f"{side}/{location.over}" if location.over > 1 else side for side in _SIDES),
            ),
            optional=True,
        )
        for location in locations(unet)
    ]


def of_call(unet: Any, tensors: Tensors) -> dict[str, Any]:
    """The residuals among a graph's inputs as the UNet's call takes them."""
    residuals = [tensors[location.name] for location in locations(unet) if location.name in tensors]
    return {_DOWN: tuple(residuals[:-1]), _MIDDLE: residuals[-1]} if residuals else {}
