"""Stable Video Diffusion: diffusers' UNetSpatioTemporalConditionModel and the decoder of its VAE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.outputs import Output
from ...common.reasons import Reason
from ...common.shapes import Dim, Refused, ShapeRange
from ...runtime import unet_sizes
from . import vae
from .family import Arguments, Inputs, Ranged, Shapes, arguments, noise, plain, spec_of, steps_of
from .unet import levels_of, side_of, without_upsampled_sizes

_ARGUMENTS = ("sample", "timestep", "encoder_hidden_states", "added_time_ids", "return_dict")
_DECODER_ARGUMENTS = ("sample", "image_only_indicator", "num_frames")
_FEWEST_FRAMES, _MOST_FRAMES = 2, 32
_USUAL_FRAMES = 14
_IDS = 3  # frames per second, motion bucket, noise augmentation


def _frames_of(pipe: Any) -> int:
    frames = getattr(pipe.unet.config, "num_frames", None)
    return frames if isinstance(frames, int) else _USUAL_FRAMES


@dataclass(frozen=True)
class VideoUnet:
    """Inputs: sample [1,F,C,H,W], timesteps [1], context [1,T,D], time_ids [1,N]. One video at a time."""

    component: str = "unet"
    method: str = "forward"
    chunk: int = 1
    each_call_is_a_run: bool = False
    checks_finite: bool = False

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import UNetSpatioTemporalConditionModel

        return type(module) is UNetSpatioTemporalConditionModel

    def unit(self, module: torch.nn.Module) -> int:
        return unet_sizes.PIXELS

    def config_refusal(self, module: torch.nn.Module) -> Reason | None:
        return None

    def inputs(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | Refused:
        call = arguments(_ARGUMENTS, args, kwargs)
        unknown = call.keys() - set(_ARGUMENTS)
        if unknown:
            return Refused(reasons.CallArgument(min(unknown)))
        given = plain([call.get(name) for name in ("sample", "encoder_hidden_states", "added_time_ids")])
        if given is None:
            return Refused(reasons.NotPlainInputs())
        sample, context, ids = given
        steps = steps_of(call.get("timestep"), sample)
        if sample.ndim != 5 or context.ndim != 3 or ids.ndim != 2 or steps is None:
            return Refused(reasons.UnusualInputs())
        return {"sample": sample, "timesteps": steps, "context": context, "time_ids": ids}

    def ranged(self, module: torch.nn.Module, inputs: Inputs, shapes: Shapes) -> Ranged:
        sample, context, ids = (inputs[name] for name in ("sample", "context", "time_ids"))
        _, frames, channels, height, width = sample.shape
        sizes = {"height": height, "width": width, "frames": frames}
        if shapes == "exact":
            dims = tuple(Dim(name, size, size) for name, size in sizes.items())
            label = f"{width * unet_sizes.PIXELS}x{height * unet_sizes.PIXELS} {frames} frames"
        else:
            ranges, label = unet_sizes.any_size(levels_of(module), sample.device, sizes)
            dims = (*(dim for dim in ranges if dim.name in sizes), Dim("frames", _FEWEST_FRAMES, _MOST_FRAMES))
            label = f"{label}, up to {_MOST_FRAMES} frames"
        specs = (
            spec_of("sample", sample, 1, "frames", channels, "height", "width"),
            spec_of("timesteps", inputs["timesteps"], 1),
            spec_of("context", context, 1, *context.shape[1:]),
            spec_of("time_ids", ids, 1, ids.shape[1]),
        )
        return Ranged(ShapeRange(dims, specs), label, sizes)

    def run(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        own: Any = type(module).forward
        result: torch.Tensor = own(module, *inputs.values(), return_dict=False)[0]
        return result

    def prepare_capture(self, module: torch.nn.Module) -> None:
        without_upsampled_sizes(module)

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        from diffusers.models.unets.unet_spatio_temporal_condition import UNetSpatioTemporalConditionOutput

        as_dict = arguments(_ARGUMENTS, args, kwargs).get("return_dict", True)
        return UNetSpatioTemporalConditionOutput(sample=output) if as_dict else (output,)

    def only_restores(self) -> bool:
        return False

    def usual_call(self, pipe: Any, module: torch.nn.Module) -> Arguments:
        unet: Any = module
        config, side = unet.config, side_of(pipe)
        dim = config.cross_attention_dim
        sample = noise(2, _frames_of(pipe), config.in_channels, side, side, like=unet)
        context = noise(2, 1, dim if isinstance(dim, int) else dim[0], like=unet)
        return Arguments((sample, 500, context, 100 * noise(2, _IDS, like=unet).abs()))


@dataclass(frozen=True)
class VideoDecoder:
    """Inputs: latents of one video's frames [F,C,h,w], and which of them are still images [1,F]."""

    component: str = "vae_decoder"
    method: str = "forward"
    chunk: int = 0  # frames are decoded together
    each_call_is_a_run: bool = True
    checks_finite: bool = True

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers.models.autoencoders.autoencoder_kl_temporal_decoder import TemporalDecoder

        return type(module) is TemporalDecoder

    def unit(self, module: torch.nn.Module) -> int:
        return vae.factor_of(module)

    def config_refusal(self, module: torch.nn.Module) -> Reason | None:
        return None

    def inputs(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | Refused:
        call = arguments(_DECODER_ARGUMENTS, args, kwargs)
        unknown = call.keys() - set(_DECODER_ARGUMENTS)
        if unknown:
            return Refused(reasons.CallArgument(min(unknown)))
        given = plain([call.get("sample"), call.get("image_only_indicator")])
        if given is None:
            return Refused(reasons.NotPlainInputs())
        x, stills = given
        frames = call.get("num_frames", 1)
        if x.ndim != 4 or frames != x.shape[0] or stills.shape != (1, frames):
            return Refused(reasons.UnusualInputs())
        return {"x": x, "stills": stills}

    def ranged(self, module: torch.nn.Module, inputs: Inputs, shapes: Shapes) -> Ranged:
        x = inputs["x"]
        frames, channels, height, width = x.shape
        factor = vae.factor_of(module)
        sizes = {"frames": frames, "height": height, "width": width}
        if shapes == "exact":
            dims = tuple(Dim(name, size, size) for name, size in sizes.items())
            label = f"{width * factor}x{height * factor} {frames} frames"
        else:
            ranges, label = vae.any_size(1, factor)
            dims = (Dim("frames", _FEWEST_FRAMES, _MOST_FRAMES), *ranges)
            label = f"{label}, up to {_MOST_FRAMES} frames"
        specs = (
            spec_of("x", x, "frames", channels, "height", "width"),
            spec_of("stills", inputs["stills"], 1, "frames"),
        )
        return Ranged(ShapeRange(dims, specs), label, sizes)

    def run(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        own: Any = type(module).forward
        x = inputs["x"]
        result: torch.Tensor = own(module, x, image_only_indicator=inputs["stills"], num_frames=x.shape[0])
        return result

    def prepare_capture(self, module: torch.nn.Module) -> None:
        pass

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return output

    def only_restores(self) -> bool:
        return False

    def usual_call(self, pipe: Any, module: torch.nn.Module) -> Arguments:
        frames, side = _frames_of(pipe), side_of(pipe)
        x = noise(frames, pipe.vae.config.latent_channels, side, side, like=pipe.vae)
        stills = torch.zeros(1, frames, dtype=x.dtype, device=x.device)
        return Arguments((x,), {"image_only_indicator": stills, "num_frames": frames})
