"""Control residuals: what ControlNets and T2I adapters add to a UNet's blocks, as inputs of its graph.

The host hands a call `{"input": [...], "middle": [...], "output": [...]}`, in each list one residual or None per block,
the last one for the first block that runs; a block for which the list is empty gets none. It takes them off the lists
as it adds them, so nothing here changes a list: the call may run eager after all. Residuals of several ControlNets are
one sum by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.refused import Refused
from ...runtime.family import Input

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_KINDS = ("input", "middle", "output")
_SIDES = ("height", "width")


@dataclass(frozen=True)
class _Block:
    """A place at which a UNet adds a residual.

    Attributes:
        kind: of the list that it takes the residual from.
        number: in the order in which the blocks of that kind run.
        channels, over: of what it adds it to: its channels, and the UNet's height divided by its own.
    """

    kind: str
    number: int
    channels: int
    over: int

    @property
    def name(self) -> str:
        """The graph's name of the input."""
        return f"{self.kind}_{self.number}"

    def size(self, x: torch.Tensor) -> tuple[int, ...]:
        """The residual's shape for a call with these latents."""
        height, width = (-(-size // self.over) for size in x.shape[2:])
        return x.shape[0], self.channels, height, width


def _blocks(unet: Any) -> list[_Block]:
    """All places of a UNet in the order in which they run."""
    from comfy.ldm.modules.diffusionmodules.openaimodel import Downsample

    skips: list[tuple[int, int]] = []
    channels, over = 0, 1
    for block in unet.input_blocks:
        for layer in block:
            halves = isinstance(layer, Downsample) or getattr(layer, "updown", False)
            over *= 2 if halves else 1
            channels = getattr(layer, "out_channels", channels)
        skips.append((channels, over))
    inputs = [_Block("input", number, *skip) for number, skip in enumerate(skips)]
    outputs = [_Block("output", number, *skip) for number, skip in enumerate(reversed(skips))]
    return [*inputs, _Block("middle", 0, *skips[-1]), *outputs]


def taken(unet: Any, control: Any, x: torch.Tensor) -> dict[str, torch.Tensor] | Refused:
    """Take the residuals of one call as inputs of a graph, by name and in the order of the blocks.

    Returns:
        Residuals of the whole batch; or why no graph serves the call: the host broadcasts a residual in another way,
        or leaves it out with a warning.
    """
    if not control:
        return {}
    residuals: dict[str, torch.Tensor] = {}
    if not isinstance(control, dict):
        return Refused(reasons.UnusualResidual(type(control).__name__))
    for block in _blocks(unet):
        of_kind = control.get(block.kind, [])
        if not isinstance(of_kind, list):
            return Refused(reasons.UnusualResidual(type(of_kind).__name__))
        residual = of_kind[-1 - block.number] if block.number < len(of_kind) else None
        if residual is None:
            continue
        if type(residual) is not torch.Tensor or residual.device != x.device or residual.dtype not in _DTYPES:
            what = f"{residual.dtype} on {residual.device}" if isinstance(residual, torch.Tensor) else ""
            return Refused(reasons.UnusualResidual(f"{type(residual).__name__} {what}".strip()))
        size = block.size(x)
        if tuple(residual.shape) not in (size, (1, *size[1:])):
            return Refused(reasons.ResidualSize(block.kind, block.number, tuple(residual.shape), size))
        residuals[block.name] = residual.expand(size)
    return residuals


def usual(unet: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return zeros as a ControlNet gives them for a call with these latents: for the middle and every skip."""
    steered = (block for block in _blocks(unet) if block.kind != "input")
    return {block.name: torch.zeros(block.size(x), dtype=x.dtype, device=x.device) for block in steered}


def inputs(unet: Any, tensors: Mapping[str, torch.Tensor]) -> list[Input]:
    """The residuals among a graph's inputs, in the order of the blocks."""
    if not among(tensors):
        return []
    return [
        Input(
            block.name,
            ("batch", block.channels, *(f"{side}/{block.over}" if block.over > 1 else side for side in _SIDES)),
            optional=True,
        )
        for block in _blocks(unet)
    ]


def among(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether a graph's inputs hold residuals."""
    return any(name.partition("_")[0] in _KINDS for name in tensors)


def control_of(residuals: Mapping[str, torch.Tensor]) -> dict[str, list[torch.Tensor | None]] | None:
    """Return residuals as the host hands them to its UNet, in lists of their own; None where there are none."""
    if not residuals:
        return None
    control: dict[str, list[torch.Tensor | None]] = {}
    for name, residual in residuals.items():
        kind, _, number = name.partition("_")
        of_kind = control.setdefault(kind, [])
        of_kind += [None] * (int(number) + 1 - len(of_kind))
        of_kind[int(number)] = residual
    return {kind: of_kind[::-1] for kind, of_kind in control.items()}


def split(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], Any]:
    """Return a graph's inputs without the residuals, and these as the host's control."""
    residuals = {name: tensor for name, tensor in tensors.items() if name.partition("_")[0] in _KINDS}
    return {name: tensor for name, tensor in tensors.items() if name not in residuals}, control_of(residuals)
