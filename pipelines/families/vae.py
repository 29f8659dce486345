"""The halves of diffusers' image VAEs: AutoencoderKL (SD, SDXL, SD3, Flux) and AutoencoderTiny.

The decoder and encoder modules themselves are compiled, so that whole images, slices of a batch and tiles all come
through; what the VAE does around them, 1x1 convolutions and random numbers, stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.outputs import Output
from ...common.reasons import Reason
from ...common.shapes import Dim, Refused, ShapeRange
from .family import Arguments, Inputs, Ranged, Shapes, noise, spec_of
from .unet import side_of

_SMALLEST, _LARGEST = 2, 256  # latent units; tiles leave slim remainders at the borders
_TILING = ("tiled_decode", "tiled_encode", "_tiled_decode", "_tiled_encode")
_NEAR = 8  # frames from the tiles' loop down to here


def any_size(unit: int, factor: int) -> tuple[tuple[Dim, ...], str]:
    """The dimensions of a graph for any size, and its label.

    Args:
        unit: of the inputs' sizes in which they come, e.g. 8 pixels of an image that is encoded.
        factor: pixels of an image per latent unit.
    """
    dims = tuple(Dim(name, _SMALLEST * unit, _LARGEST * unit, unit) for name in ("height", "width"))
    return dims, f"any size {_SMALLEST * factor}-{_LARGEST * factor}"


def factor_of(module: Any) -> int:
    """Pixels per latent unit."""
    blocks = getattr(module, "down_blocks", None) or getattr(module, "up_blocks", None)
    if blocks is not None:
        return 2 ** (len(blocks) - 1)
    strides = [child for child in module.modules() if getattr(child, "stride", (1, 1)) == (2, 2)]
    upsamples = [child for child in module.modules() if isinstance(child, torch.nn.Upsample)]
    return 2 ** max(len(strides), len(upsamples))


@dataclass(frozen=True)
class VaeHalf:
    """Input: latents [1,C,h,w] or an image [1,3,H,W], one at a time: more make no difference to a VAE's speed."""

    component: str
    method: str = "forward"
    chunk: int = 1
    each_call_is_a_run: bool = True
    checks_finite: bool = True

    @property
    def _decodes(self) -> bool:
        return self.component == "vae_decoder"

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers.models.autoencoders import vae

        return type(module) in ((vae.Decoder, vae.DecoderTiny) if self._decodes else (vae.Encoder, vae.EncoderTiny))

    def unit(self, module: torch.nn.Module) -> int:
        return factor_of(module) if self._decodes else 1

    def config_refusal(self, module: torch.nn.Module) -> Reason | None:
        return None

    def inputs(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | Refused:
        given = [*args, *kwargs.values()]
        if len(given) != 1 and any(one is not None for one in given[1:]):
            return Refused(reasons.CallArgument("latent_embeds"))
        x = given[0] if given else None
        if type(x) is not torch.Tensor or x.ndim != 4:
            return Refused(reasons.NotImages())
        return {"x": x}

    def ranged(self, module: torch.nn.Module, inputs: Inputs, shapes: Shapes) -> Ranged:
        _, channels, height, width = inputs["x"].shape
        factor = factor_of(module)
        unit = 1 if self._decodes else factor  # of the inputs' sizes
        sizes = {"height": height, "width": width}
        if shapes == "exact":
            dims = tuple(Dim(name, size, size) for name, size in sizes.items())
            label = f"{width * factor // unit}x{height * factor // unit}"
        else:
            dims, label = any_size(unit, factor)
        spec = spec_of("x", inputs["x"], 1, channels, "height", "width")
        return Ranged(ShapeRange(dims, (spec,)), label, sizes)

    def run(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        own: Any = type(module).forward  # not what stands on the instance: that leads back to the graph
        result: torch.Tensor = own(module, inputs["x"])
        return result

    def prepare_capture(self, module: torch.nn.Module) -> None:
        pass

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return output

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

    def usual_call(self, pipe: Any, module: torch.nn.Module) -> Arguments:
        config = pipe.vae.config
        channels = config.latent_channels if self._decodes else config.in_channels
        side = side_of(pipe) * (1 if self._decodes else factor_of(module))
        return Arguments((noise(1, channels, side, side, like=pipe.vae),))


DECODER, ENCODER = VaeHalf("vae_decoder"), VaeHalf("vae_encoder")
