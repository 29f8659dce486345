"""The halves of ComfyUI's VAEs of images: SD, SDXL, SD 3, Flux, Z-Image, FLUX.2 and TAESD.

One image at a time: more make no difference to a VAE's speed, and a large batch would double its memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.refused import Refused
from ...runtime.family import TENSORS, Arguments, Axis, Input, Tensors
from ..comfyui.contract import Use, uses
from ..comfyui.prompt_size import FIRST, Size
from .family import HostFamily, one_path

Half = Literal["decoder", "encoder"]
HALVES: tuple[Half, ...] = ("decoder", "encoder")
_SMALLEST = 2  # latent units; tiles leave slim remainders at the borders
_LARGEST = 2048  # pixels


@dataclass(frozen=True)
class Layout:
    """How the tensors of a VAE lie.

    Attributes:
        dims: 4: images [B,C,H,W]; 5: videos [B,C,T,H,W], of which graphs serve those of one frame.
        pixels: of an image per latent unit.
    """

    dims: int
    pixels: int


class VaeHalf(HostFamily):
    """The decoder or the encoder of one kind of VAE. `like` of an example is ComfyUI's VAE object.

    Attributes:
        half: which of the two.
    """

    half: ClassVar[Half]
    feature = "VAE"
    chunk = 1
    uses: ClassVar[tuple[Use, ...]] = (
        Use("comfy.ldm.modules.diffusionmodules.model.pytorch_attention", ("q", "k", "v")),
    )

    def knows(self, module: torch.nn.Module) -> bool:
        """Whether the VAE is of this kind, however it is built."""
        raise NotImplementedError

    def layout(self, module: Any) -> Layout | Reason:
        """How the tensors of this half of a VAE lie, or why no graph serves it."""
        raise NotImplementedError

    def serves(self, module: torch.nn.Module) -> bool:
        return self.refusal(module) is None

    def refusal(self, module: torch.nn.Module) -> Reason | None:
        if not self.knows(module):
            return reasons.NotACompilableVae(type(module).__name__)
        layout = self.layout(module)
        return layout if isinstance(layout, Reason) else None

    def laid_out(self, module: torch.nn.Module) -> Layout:
        """The layout of a VAE that is served."""
        layout = self.layout(module)
        assert isinstance(layout, Layout)
        return layout

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        frames = (None,) * (self.laid_out(module).dims - 4)
        return (Input("x", (1, None, *frames, "height", "width")),)

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        (x,) = args
        layout = self.laid_out(module)
        if type(x) not in TENSORS or x.ndim != layout.dims:
            return Refused(reasons.NotImages())
        if layout.dims == 5 and x.shape[2] != 1:
            return Refused(reasons.SeveralFrames(x.shape[2]))
        return {"x": x}

    def regularization(self, module: Any) -> Any:
        """What follows an encoder's graph, which may draw random numbers and is the host's own; None: nothing does."""
        return None

    @contextlib.contextmanager
    def capture_rewrites(self, module: torch.nn.Module, tensors: Tensors) -> Iterator[None]:
        from comfy.ldm.modules.diffusionmodules.model import pytorch_attention

        for block in module.modules():
            if "optimized_attention" in vars(block):  # a VAE's blocks carry the host's choice; see `attention`
                block.optimized_attention = pytorch_attention
        with one_path(next(iter(tensors.values()))):
            yield


class DecoderHalf(VaeHalf):
    """Input: latents [1,C,h,w] or [1,C,1,h,w] -> image, before ComfyUI's own scaling and clamping."""

    component = "vae_decoder"
    half = "decoder"

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        pixels = self.laid_out(module).pixels
        return sides(1, pixels, pixels)

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        vae_class: Any = type(module)
        result: torch.Tensor = vae_class.decode(module, tensors["x"])
        return result

    def example(self, module: torch.nn.Module, like: Any, size: Size = FIRST) -> Arguments:
        layout = self.laid_out(module)
        frames = (1,) * (layout.dims - 4)
        shape = (1, like.latent_channels, *frames, size.height // layout.pixels, size.width // layout.pixels)
        return Arguments((torch.zeros(shape, dtype=like.vae_dtype, device=like.device),))


class EncoderHalf(VaeHalf):
    """Input: image [1,3,H,W] or [1,3,1,H,W] -> latents, or what the regularization makes latents of."""

    component = "vae_encoder"
    half = "encoder"

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        pixels = self.laid_out(module).pixels
        return sides(pixels, pixels, 1)

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        vae_class: Any = type(module)
        result: torch.Tensor = vae_class.encode(module, tensors["x"])
        return result

    def example(self, module: torch.nn.Module, like: Any, size: Size = FIRST) -> Arguments:
        frames = (1,) * (self.laid_out(module).dims - 4)
        shape = (1, like.output_channels, *frames, size.height, size.width)
        return Arguments((torch.zeros(shape, dtype=like.vae_dtype, device=like.device),))


def sides(unit: int, factor: int, pixels: int) -> tuple[Sequence[Axis], str]:
    """Height and width.

    Args:
        unit: of the input's sizes in which they come.
        factor: pixels of an image per latent unit.
        pixels: of an image per unit of the input's sizes.
    """
    largest = _LARGEST // factor
    sides = [Axis(name, _SMALLEST * unit, largest * unit, unit, pixels) for name in ("height", "width")]
    return sides, f"any size {_SMALLEST * factor}-{largest * factor}"


class Taesd(VaeHalf):
    """TAESD for SD, SDXL, SD 3, Flux and FLUX.2."""

    supported = "TAESD"
    uses = (*VaeHalf.uses, *uses("comfy.taesd.taesd", "TAESD.decode", "TAESD.encode", "DecoderFlux2", "EncoderFlux2"))

    def knows(self, module: torch.nn.Module) -> bool:
        from comfy.taesd.taesd import TAESD

        return type(module) is TAESD

    def layout(self, module: Any) -> Layout | Reason:
        from comfy.taesd.taesd import DecoderFlux2, EncoderFlux2

        half = module.taesd_decoder if self.half == "decoder" else module.taesd_encoder
        return Layout(4, 16 if isinstance(half, DecoderFlux2 | EncoderFlux2) else 8)


class TaesdDecoder(Taesd, DecoderHalf):
    pass


class TaesdEncoder(Taesd, EncoderHalf):
    pass


class Autoencoder(VaeHalf):
    """AutoencoderKL and AutoencodingEngine with their usual halves, of images or of HunyuanVideo's videos."""

    supported = "VAEs of SD, SDXL, SD 3, Flux, Z-Image, FLUX.2 and HunyuanVideo"
    uses = (
        *VaeHalf.uses,
        *uses("comfy.ldm.models.autoencoder.AutoencoderKL", "decode", "encode"),
        *uses("comfy.ldm.models.autoencoder.AutoencodingEngine", "decode", "encode"),
        *uses("comfy.ldm.models.autoencoder", "DiagonalGaussianRegularizer"),
        *uses("comfy.ldm.modules.diffusionmodules.model", "Decoder", "Encoder"),
    )

    def knows(self, module: torch.nn.Module) -> bool:
        from comfy.ldm.models.autoencoder import AutoencoderKL, AutoencodingEngine

        return type(module) in (AutoencoderKL, AutoencodingEngine)

    def layout(self, module: Any) -> Layout | Reason:
        name, half = type(module).__name__, getattr(module, self.half)
        if getattr(module, "max_batch_size", None) is not None:
            return reasons.SplitBatches(name)
        half_layout = self.half_layout(half)
        if half_layout is None or (self.half == "encoder" and _normalises(module) and _draws(module.regularization)):
            return reasons.UnusualVae(name)
        return Layout(half_layout.dims, half_layout.pixels * (module.ps[0] if _normalises(module) else 1))

    def half_layout(self, half: Any) -> Layout | None:
        """How the tensors of a decoder or encoder lie; None: it is none that graphs serve."""
        from comfy.ldm.modules.diffusionmodules import model as blocks

        if type(half) not in (blocks.Decoder, blocks.Encoder):
            return None
        return Layout(5 if half.carried else 4, 2 ** (half.num_resolutions - 1))


class Decoder(Autoencoder, DecoderHalf):
    pass


class Encoder(Autoencoder, EncoderHalf):
    """Its graph ends before the regularization, unless the latents are normalised after that."""

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        vae: Any = module
        regularization = self.regularization(module)
        if regularization is None or getattr(regularization, "forward", None) is _unregularized:
            # The class's own method, so that the graph's record of functions names it.
            return super().run(module, tensors)
        moments: torch.Tensor = vae.encoder(tensors["x"])
        return vae.quant_conv(moments) if hasattr(vae, "quant_conv") else moments

    def regularization(self, module: Any) -> Any:
        return None if _normalises(module) else module.regularization

    @contextlib.contextmanager
    def capture_rewrites(self, module: torch.nn.Module, tensors: Tensors) -> Iterator[None]:
        regularization = self.regularization(module)
        if regularization is not None:
            regularization.forward = _unregularized
        with super().capture_rewrites(module, tensors):
            yield


def _normalises(module: Any) -> bool:
    """Whether latents are normalised after the regularization, as FLUX.2's are."""
    return getattr(module, "bn", None) is not None


def _draws(regularization: Any) -> bool:
    """Whether a regularization may draw random numbers, or is one that nobody here knows."""
    from comfy.ldm.models.autoencoder import DiagonalGaussianRegularizer

    return type(regularization) is not DiagonalGaussianRegularizer or regularization.sample


def _unregularized(moments: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """What a regularization gives that changes nothing."""
    return moments, {}
