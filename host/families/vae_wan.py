"""The halves of ComfyUI's Wan VAEs, which Qwen-Image shares.

The host encodes and decodes a single image whole. It decodes a video part by part: 2 latent frames at a time (Wan 2.1)
or 1 (Wan 2.2), each with what the convolutions over time remember of the parts before. That memory is full after two
parts; all later ones are calls of one graph, which takes it as inputs and returns what is remembered next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from ...common import reasons
from ...common.outputs import Output, tensors_of
from ...common.reasons import Reason
from ...common.shapes import Refused
from ...runtime.family import Arguments, Axis, Input, Tensors, by_name
from ..contract import Use, uses
from .vae import DecoderHalf, EncoderHalf, Layout, VaeHalf, sides

_PATCH = 2  # pixels of an image per unit of what Wan 2.2's VAE convolves
_REMEMBERED = 2  # frames, by each convolution
_MEMORY = "memory_"  # with a number: the name of an input


class Wan21(VaeHalf):
    """Inputs: latents [1,16,1,h,w], or images [1,3,1,8h,8w] (4 channels: Qwen-Image-Layered)."""

    supported = "VAEs of Wan 2.1 and Qwen-Image"
    uses = (*VaeHalf.uses, *uses("comfy.ldm.wan.vae.WanVAE", "decode", "encode"))

    def knows(self, module: torch.nn.Module) -> bool:
        from comfy.ldm.wan.vae import WanVAE

        return type(module) is WanVAE

    def layout(self, module: Any) -> Layout | Reason:
        return Layout(5, 2 ** (len(module.dim_mult) - 1))


class Wan22(VaeHalf):
    """Inputs: latents [1,48,1,h,w], or images [1,3,1,16h,16w]."""

    supported = "VAEs of Wan 2.2 5B"
    uses = (*VaeHalf.uses, *uses("comfy.ldm.wan.vae2_2.WanVAE", "decode", "encode"))

    def knows(self, module: torch.nn.Module) -> bool:
        from comfy.ldm.wan.vae2_2 import WanVAE

        return type(module) is WanVAE

    def layout(self, module: Any) -> Layout | Reason:
        return Layout(5, _PATCH * 2 ** (len(module.dim_mult) - 1))


class PartDecoder(VaeHalf):
    """A part of a video, decoded by the VAE's decoder module.

    Inputs: what is decoded [1,C,F,h,w] and, for each convolution over time, what it remembers [1,C',F',kh,kw]. Outputs:
    the images, and what is remembered next.

    Attributes:
        frames: latent frames of a part.
    """

    component = "vae_decoder_part"
    half = "decoder"
    frames: ClassVar[int]
    arguments = ("x", "feat_cache", "feat_idx")

    def inputs(self, module: torch.nn.Module, given: Tensors) -> Sequence[Input]:
        x = given["part"]
        factors = {name: one.shape[3] // x.shape[3] for name, one in given.items()}
        return [
            Input(name, (1, None, None, *(f"{side}*{over}" if over > 1 else side for side in ("height", "width"))))
            for name, over in factors.items()
        ]

    def axes(self, module: torch.nn.Module, given: Tensors) -> tuple[Sequence[Axis], str]:
        pixels = self.laid_out(module).pixels
        found, label = sides(1, pixels, pixels)
        return found, f"parts of videos, {label}"

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        call = by_name(self.arguments, args, kwargs)
        x, memory = call["x"], call.get("feat_cache")
        foreign = next((name for name in call if name not in (*self.arguments, "first_chunk")), None)
        if foreign is not None:
            return Refused(reasons.CallArgument(foreign))
        if call.get("first_chunk"):
            return Refused(reasons.PartOfVideo())
        slots = self.slots(module)
        if type(x) is not torch.Tensor or x.ndim != 5 or not isinstance(memory, list) or len(memory) < slots:
            return Refused(reasons.NotImages())
        known = memory[:slots]
        if x.shape[2] != self.frames or not all(_is_full(one, x) for one in known):
            return Refused(reasons.PartOfVideo())
        return {"part": x, **{f"{_MEMORY}{number}": one for number, one in enumerate(known)}}

    def run(self, module: torch.nn.Module, given: Tensors) -> Output:
        decoder: Any = getattr(module, self.half)
        x, *memory = given.values()
        images = type(decoder).forward(decoder, x, feat_cache=memory, feat_idx=[0])
        # Copies: what is remembered would otherwise be views of the inputs and of all that was computed.
        return self.joined(images), *(one.clone() for one in memory)

    def returned(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the host's own code expects of a call: the images, and what is remembered where it keeps that."""
        images, *memory = tensors_of(output)
        by_name(self.arguments, args, kwargs)["feat_cache"][: len(memory)] = memory
        return self.split(images)

    def joined(self, images: Any) -> torch.Tensor:
        """What the decoder module returns as one tensor."""
        raise NotImplementedError

    def split(self, images: torch.Tensor) -> Any:
        """The opposite of `joined`, for the host's own code."""
        raise NotImplementedError

    def slots(self, module: Any) -> int:
        """How many convolutions of the decoder remember frames."""
        raise NotImplementedError

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        raise NotImplementedError("what is remembered follows from the parts before")


def _is_full(memory: Any, x: torch.Tensor) -> bool:
    """Whether a convolution remembers as much as it ever does, and in a multiple of the latents' size."""
    if type(memory) is not torch.Tensor or memory.ndim != 5 or memory.shape[2] != _REMEMBERED:
        return False
    over, rest = divmod(memory.shape[3], x.shape[3])
    return memory.shape[0] == x.shape[0] and not rest and memory.shape[4] == over * x.shape[4]


def _remembering(decoder: Any, home: Any) -> int:
    """How many convolutions over time a decoder runs with memory."""
    found = 2  # the first and the last one
    for block in decoder.modules():
        if isinstance(block, home.ResidualBlock):
            found += 2
        elif isinstance(block, home.Resample):
            found += block.mode == "upsample3d"
    return found


class Wan21Part(Wan21, PartDecoder):
    uses = (
        *Wan21.uses,
        *uses("comfy.ldm.wan.vae", "ResidualBlock", "Resample"),
        Use("comfy.ldm.wan.vae.Decoder3d.forward", PartDecoder.arguments),
    )
    frames = 2

    def joined(self, images: Any) -> torch.Tensor:
        return torch.cat(images, 2)

    def split(self, images: torch.Tensor) -> Any:
        return [images]

    def slots(self, module: Any) -> int:
        from comfy.ldm.wan import vae

        return _remembering(module.decoder, vae)


class Wan22Part(Wan22, PartDecoder):
    uses = (
        *Wan22.uses,
        *uses("comfy.ldm.wan.vae2_2", "ResidualBlock", "Resample"),
        Use("comfy.ldm.wan.vae2_2.Decoder3d.forward", PartDecoder.arguments),
    )
    frames = 1

    def joined(self, images: Any) -> torch.Tensor:
        found: torch.Tensor = images
        return found

    def split(self, images: torch.Tensor) -> Any:
        return images

    def slots(self, module: Any) -> int:
        from comfy.ldm.wan import vae2_2

        return _remembering(module.decoder, vae2_2)


class Wan21Decoder(Wan21, DecoderHalf):
    of_parts = Wan21Part()


class Wan21Encoder(Wan21, EncoderHalf):
    pass


class Wan22Decoder(Wan22, DecoderHalf):
    of_parts = Wan22Part()


class Wan22Encoder(Wan22, EncoderHalf):
    pass
