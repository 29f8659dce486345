"""Stable Video Diffusion: diffusers' UNetSpatioTemporalConditionModel and the decoder of its VAE."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...common import reasons
from ...common.outputs import Output
from ...common.refused import Refused
from ...runtime.calls import latent_ranges
from ...runtime.family import Arguments, Axis, Input, by_name
from . import vae
from .family import PipeFamily, Tensors, noise, own_forward, plain, steps_of
from .unet import levels_of, side_of, with_upsampled_sizes

_FEWEST_FRAMES, _MOST_FRAMES = 2, 32
_USUAL_FRAMES = 14
_FRAMES = Axis("frames", _FEWEST_FRAMES, _MOST_FRAMES, text="{} frames")
_IDS = 3  # frames per second, motion bucket, noise augmentation


def _frames_of(pipe: Any) -> int:
    frames = getattr(pipe.unet.config, "num_frames", None)
    return frames if isinstance(frames, int) else _USUAL_FRAMES


class VideoUnet(PipeFamily):
    """Inputs: sample [1,F,C,H,W], timesteps [1], context [1,T,D], time_ids [1,N]. One video at a time."""

    component = "unet"
    chunk = 1
    arguments = ("sample", "timestep", "encoder_hidden_states", "added_time_ids", "return_dict")

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import UNetSpatioTemporalConditionModel

        return type(module) is UNetSpatioTemporalConditionModel

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        return (
            Input("sample", (1, "frames", None, "height", "width")),
            Input("timesteps", (1,)),
            Input("context", (1, None, None)),
            Input("time_ids", (1, None)),
        )

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        sample = tensors["sample"]
        height, width = sample.shape[-2:]
        axes, label = latent_ranges.any_size(levels_of(module), sample.device, height, width)
        return [*(axis for axis in axes if axis.pixels), _FRAMES], f"{label}, up to {_MOST_FRAMES} frames"

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        call = by_name(self.arguments, args, kwargs)
        unknown = call.keys() - set(self.arguments)
        if unknown:
            return Refused(reasons.CallArgument(min(unknown)))
        tensors = plain([call.get(name) for name in ("sample", "encoder_hidden_states", "added_time_ids")])
        if tensors is None:
            return Refused(reasons.NotPlainInputs())
        sample, context, ids = tensors
        steps = steps_of(call.get("timestep"), sample)
        if sample.ndim != 5 or context.ndim != 3 or ids.ndim != 2 or steps is None:
            return Refused(reasons.UnusualInputs())
        return {"sample": sample, "timesteps": steps, "context": context, "time_ids": ids}

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        result: torch.Tensor = own_forward(module)(module, *tensors.values(), return_dict=False)[0]
        return result

    def capture_rewrites(self, module: torch.nn.Module, tensors: Tensors) -> contextlib.AbstractContextManager[None]:
        return with_upsampled_sizes(module)

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        from diffusers.models.unets.unet_spatio_temporal_condition import UNetSpatioTemporalConditionOutput

        return self.as_asked(UNetSpatioTemporalConditionOutput, output, args, kwargs)

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        unet: Any = module
        config, side = unet.config, side_of(like)
        dim = config.cross_attention_dim
        sample = noise(2, _frames_of(like), config.in_channels, side, side, like=unet)
        context = noise(2, 1, dim if isinstance(dim, int) else dim[0], like=unet)
        return Arguments((sample, 500, context, 100 * noise(2, _IDS, like=unet).abs()))


class VideoDecoder(PipeFamily):
    """Inputs: latents of one video's frames [F,C,h,w], which are decoded together, and which are stills [1,F]."""

    component = "vae_decoder"
    arguments = ("sample", "image_only_indicator", "num_frames")
    neutral = frozenset({"num_frames"})
    each_call_is_a_run = True
    checks_finite = True

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers.models.autoencoders.autoencoder_kl_temporal_decoder import TemporalDecoder

        return type(module) is TemporalDecoder

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        return (
            Input("x", ("frames", None, "height", "width"), "sample"),
            Input("stills", (1, "frames"), "image_only_indicator"),
        )

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        factor = vae.factor_of(module)
        sides, label = vae.any_size(1, factor, factor)
        return [_FRAMES, *sides], f"{label}, up to {_MOST_FRAMES} frames"

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        tensors = super().read(module, args, kwargs)
        frames = by_name(self.arguments, args, kwargs).get("num_frames", 1)
        if isinstance(tensors, Refused) or (frames == tensors["x"].shape[0] and tensors["stills"].shape == (1, frames)):
            return tensors
        return Refused(reasons.UnusualInputs())

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        x, stills = tensors["x"], tensors["stills"]
        result: torch.Tensor = own_forward(module)(module, x, image_only_indicator=stills, num_frames=x.shape[0])
        return result

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        frames, side = _frames_of(like), side_of(like)
        x = noise(frames, like.vae.config.latent_channels, side, side, like=like.vae)
        stills = torch.zeros(1, frames, dtype=x.dtype, device=x.device)
        return Arguments((x,), {"image_only_indicator": stills, "num_frames": frames})
