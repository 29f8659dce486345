"""The halves of ComfyUI's image VAEs: AutoencoderKL, AutoencodingEngine and TAESD.

One image at a time: more make no difference to a VAE's speed, and a large batch would double its memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.shapes import Refused
from ...runtime.family import Arguments, Axis, Input, Tensors
from ...runtime.latent_ranges import PIXELS
from ..contract import Use, uses
from .family import FIRST_SIDE, Family, one_path

_SMALLEST, _LARGEST = 2, 256  # latent units; tiles leave slim remainders at the borders


class _Half(Family):
    """`like` of an example is ComfyUI's VAE object."""

    feature = "VAE"
    chunk = 1
    uses = (
        *uses("comfy.ldm.models.autoencoder.AutoencoderKL", "decode", "encode"),
        *uses("comfy.ldm.models.autoencoder.AutoencodingEngine", "decode", "encode"),
        *uses("comfy.ldm.modules.diffusionmodules.model", "AttnBlock", "Decoder", "Encoder"),
        Use("comfy.ldm.modules.diffusionmodules.model.pytorch_attention", ("q", "k", "v")),
        *uses("comfy.taesd.taesd.TAESD", "decode", "encode"),
    )

    def serves(self, module: torch.nn.Module) -> bool:
        return self.refusal(module) is None

    def refusal(self, module: torch.nn.Module) -> Reason | None:
        return module_refusal(module)

    def inputs(self, module: torch.nn.Module, given: Tensors) -> Sequence[Input]:
        return (Input("x", (1, None, "height", "width")),)

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        (x,) = args
        return {"x": x} if type(x) is torch.Tensor and x.ndim == 4 else Refused(reasons.NotImages())


class Decoder(_Half):
    """Input: latents [1,C,h,w] -> image [1,3,8h,8w], before ComfyUI's own scaling and clamping."""

    component = "vae_decoder"

    def axes(self, module: torch.nn.Module, given: Tensors) -> tuple[Sequence[Axis], str]:
        return _sides(unit=1, pixels=PIXELS)

    def run(self, module: torch.nn.Module, given: Tensors) -> torch.Tensor:
        own: Any = type(module)
        result: torch.Tensor = own.decode(module, given["x"])
        return result

    @contextlib.contextmanager
    def capture_rewrites(self, module: torch.nn.Module, given: Tensors) -> Iterator[None]:
        _attend_plainly(module)
        with one_path(given["x"]):
            yield

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        x = torch.zeros(1, like.latent_channels, FIRST_SIDE, FIRST_SIDE, dtype=like.vae_dtype, device=like.device)
        return Arguments((x,))


class Encoder(_Half):
    """Input: image [1,3,H,W] -> moments [1,2C,H/8,W/8], up to the regularization, which may draw random numbers.

    TAESD has no regularization: its latents [1,C,H/8,W/8].
    """

    component = "vae_encoder"

    def axes(self, module: torch.nn.Module, given: Tensors) -> tuple[Sequence[Axis], str]:
        return _sides(unit=PIXELS, pixels=1)

    def run(self, module: torch.nn.Module, given: Tensors) -> torch.Tensor:
        vae: Any = module
        encoder, regularization = getattr(vae, "encoder", None), getattr(vae, "regularization", None)
        if encoder is None or getattr(regularization, "forward", None) is _unregularized:
            # The class's own method, so that the graph's record of functions names it.
            result: torch.Tensor = type(vae).encode(vae, given["x"])
            return result
        moments: torch.Tensor = encoder(given["x"])
        return vae.quant_conv(moments) if hasattr(vae, "quant_conv") else moments

    @contextlib.contextmanager
    def capture_rewrites(self, module: torch.nn.Module, given: Tensors) -> Iterator[None]:
        _attend_plainly(module)
        regularization: Any = getattr(module, "regularization", None)
        if regularization is not None:
            regularization.forward = _unregularized
        with one_path(given["x"]):
            yield

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        side = FIRST_SIDE * PIXELS
        return Arguments((torch.zeros(1, 3, side, side, dtype=like.vae_dtype, device=like.device),))


def module_refusal(module: Any) -> Reason | None:
    """Why this module is none that is compiled, or None; other nodes may exchange parts of it at any time."""
    from comfy.ldm.models.autoencoder import AutoencoderKL, AutoencodingEngine
    from comfy.ldm.modules.diffusionmodules import model as blocks
    from comfy.taesd.taesd import TAESD

    name = type(module).__name__
    if type(module) is TAESD:
        return None
    if type(module) not in (AutoencoderKL, AutoencodingEngine):
        return reasons.NotACompilableVae(name)
    if type(module.encoder) is not blocks.Encoder or type(module.decoder) is not blocks.Decoder:
        return reasons.UnusualVae(name)
    if getattr(module, "bn", None) is not None or getattr(module, "max_batch_size", None) is not None:
        return reasons.NormalisedLatents(name)
    return None


def _sides(unit: int, pixels: int) -> tuple[Sequence[Axis], str]:
    """Height and width. `unit`: of the input's sizes in which they come; `pixels`: of an image per unit of them."""
    sides = [Axis(name, _SMALLEST * unit, _LARGEST * unit, unit, pixels) for name in ("height", "width")]
    return sides, f"any size {_SMALLEST * PIXELS}-{_LARGEST * PIXELS}"


def _attend_plainly(module: torch.nn.Module) -> None:
    """A VAE's attention blocks carry the host's choice of attention; see `attention`."""
    from comfy.ldm.modules.diffusionmodules.model import AttnBlock, pytorch_attention

    for block in module.modules():
        if isinstance(block, AttnBlock):
            block.optimized_attention = pytorch_attention


def _unregularized(moments: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """What a regularization gives that changes nothing."""
    return moments, {}
