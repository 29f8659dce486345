"""The halves of diffusers' image VAEs: AutoencoderKL (SD, SDXL, SD3, Flux) and AutoencoderTiny.

The decoder and encoder modules themselves are compiled, so that whole images, slices of a batch and tiles all come
through; what the VAE does around them, 1x1 convolutions and random numbers, stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...common import reasons
from ...common.refused import Refused
from ...runtime.family import Arguments, Axis, Input
from .family import PipeFamily, Tensors, noise, own_forward
from .unet import side_of

_SMALLEST, _LARGEST = 2, 256  # latent units; tiles leave slim remainders at the borders
_TILING = ("tiled_decode", "tiled_encode", "_tiled_decode", "_tiled_encode")
_NEAR = 12  # frames from the tiles' loop down to here


def any_size(unit: int, factor: int, pixels: int) -> tuple[tuple[Axis, ...], str]:
    """The sides of a graph for any size, and its label.

    Args:
        unit: of the inputs' sizes in which they come, e.g. 8 pixels of an image that is encoded.
        factor: pixels of an image per latent unit.
        pixels: of an image per unit of the inputs' sizes.
    """
    sides = tuple(Axis(name, _SMALLEST * unit, _LARGEST * unit, unit, pixels) for name in ("height", "width"))
    return sides, f"any size {_SMALLEST * factor}-{_LARGEST * factor}"


def factor_of(module: Any) -> int:
    """Pixels per latent unit."""
    blocks = getattr(module, "down_blocks", None) or getattr(module, "up_blocks", None)
    if blocks is not None:
        return 2 ** (len(blocks) - 1)
    strides = [child for child in module.modules() if getattr(child, "stride", (1, 1)) == (2, 2)]
    upsamples = [child for child in module.modules() if isinstance(child, torch.nn.Upsample)]
    return 2 ** max(len(strides), len(upsamples))


class VaeHalf(PipeFamily):
    """Input: latents [1,C,h,w] or an image [1,3,H,W], one at a time: more make no difference to a VAE's speed."""

    chunk = 1
    each_call_is_a_run = True
    checks_finite = True

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        return (Input("x", (1, None, "height", "width")),)

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        arguments = [*args, *kwargs.values()]
        if len(arguments) != 1 and any(one is not None for one in arguments[1:]):
            return Refused(reasons.CallArgument("latent_embeds"))
        x = arguments[0] if arguments else None
        if type(x) is not torch.Tensor or x.ndim != 4:
            return Refused(reasons.NotImages())
        return {"x": x}

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        result: torch.Tensor = own_forward(module)(module, tensors["x"])
        return result

    def only_restores(self) -> bool:
        """Whether this is a tile: remainders at the borders have all sizes, and none is worth a compile."""
        frame: Any = sys._getframe(1)
        for _ in range(_NEAR):
            if frame is None:
                return False
            if frame.f_code.co_name in _TILING:
                return True
            frame = frame.f_back
        return False


class Decoder(VaeHalf):
    component = "vae_decoder"

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers.models.autoencoders import vae

        return type(module) in (vae.Decoder, vae.DecoderTiny)

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        factor = factor_of(module)
        return any_size(1, factor, factor)

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        side = side_of(like)
        return Arguments((noise(1, like.vae.config.latent_channels, side, side, like=like.vae),))


class Encoder(VaeHalf):
    component = "vae_encoder"

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers.models.autoencoders import vae

        return type(module) in (vae.Encoder, vae.EncoderTiny)

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        factor = factor_of(module)
        return any_size(factor, factor, 1)

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        side = side_of(like) * factor_of(module)
        return Arguments((noise(1, like.vae.config.in_channels, side, side, like=like.vae),))
