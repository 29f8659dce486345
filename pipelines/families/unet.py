"""diffusers' UNet2DConditionModel: SD 1.x, SD 2.x, SDXL, its refiner, and their distillations for few steps."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...common import reasons
from ...common.outputs import Output
from ...common.reasons import Reason
from ...common.refused import Refused
from ...runtime.calls import latent_ranges
from ...runtime.family import Arguments, Axis, Input, by_name
from . import residuals
from .family import PipeFamily, Tensors, noise, own_forward, plain, steps_of

_TAKEN = {"sample", "timestep", "encoder_hidden_states", "added_cond_kwargs", "return_dict", *residuals.ARGUMENTS}
_PER_IMAGE = ("text_embeds", "time_ids", "timestep_cond")  # inputs of a vector for each element of the batch
TEXT_TIME = _PER_IMAGE[:2]
_TOKENS = 77
_USUAL_SIDE = 64  # latent units, where the model names none
_MANY = 40  # upsamplers: no size is a multiple of 2**40


def levels_of(module: Any) -> int:
    """Resolutions of a UNet."""
    return len(module.config.block_out_channels)


def with_upsampled_sizes(module: Any) -> contextlib.AbstractContextManager[None]:
    """Have a UNet that is captured say how large each upsampled image is.

    It does so where sizes are no multiples of what its levels need. Saying so is right for all sizes, and one graph
    serves them.
    """
    module.num_upsamplers = _MANY
    return contextlib.nullcontext()


def side_of(pipe: Any) -> int:
    """The usual height and width of a pipeline's latents."""
    for name in ("unet", "transformer"):
        side = getattr(getattr(getattr(pipe, name, None), "config", None), "sample_size", None)
        if isinstance(side, int):
            return side
    return _USUAL_SIDE


def has_text_time(module: Any) -> bool:
    """Whether the UNet takes SDXL's pooled text embedding and its sizes besides."""
    return bool(module.config.addition_embed_type == "text_time")


def conditions_refusal(config: Any) -> Reason | None:
    """Why no graph serves a UNet or ControlNet that takes its conditions like this, or None."""
    if config.encoder_hid_dim_type == "ip_image_proj":
        return reasons.IpAdapter()
    for name, usual in (("addition_embed_type", (None, "text_time")), ("class_embed_type", (None,))):
        if config[name] not in usual:
            return reasons.UnusualConfig(name, str(config[name]))
    for name in ("encoder_hid_dim_type", "num_class_embeds"):
        if config[name] is not None:
            return reasons.UnusualConfig(name, str(config[name]))
    return None


def conditions(module: Any, call: Mapping[str, Any]) -> dict[str, torch.Tensor] | Refused:
    """The latents and what the user wants of them as a graph takes them, given a call's arguments."""
    added = dict(call.get("added_cond_kwargs") or {})
    extra = {name: added.pop(name, None) for name in (TEXT_TIME if has_text_time(module) else ())}
    if call.get("timestep_cond") is not None:
        extra["timestep_cond"] = call["timestep_cond"]
    if "image_embeds" in added:
        return Refused(reasons.IpAdapter())
    if added:
        return Refused(reasons.CallArgument(f"added_cond_kwargs {next(iter(added))}"))
    tensors = plain([call.get("sample"), call.get("encoder_hidden_states"), *extra.values()])
    if tensors is None:
        return Refused(reasons.NotPlainInputs())
    sample, context = tensors[:2]
    steps = steps_of(call.get("timestep"), sample)
    if sample.ndim != 4 or context.ndim != 3 or any(t.ndim != 2 for t in extra.values()) or steps is None:
        return Refused(reasons.UnusualInputs())
    return {"sample": sample, "timesteps": steps, "context": context, **extra}


# The inputs of a UNet or ControlNet, residuals and images apart.
CONDITIONS = (
    Input("sample", ("batch", None, "height", "width")),
    Input("timesteps", ("batch",)),
    Input("context", ("batch", "context", None)),
    *(Input(name, ("batch", None), optional=True) for name in _PER_IMAGE),
)


def axes(module: Any, tensors: Tensors) -> tuple[Sequence[Axis], str]:
    """The axes of a UNet or ControlNet."""
    sample = tensors["sample"]
    height, width = sample.shape[-2:]
    return latent_ranges.any_size(levels_of(module), sample.device, height, width)


def usual_call(pipe: Any, module: Any) -> Arguments:
    """A call of a UNet or ControlNet as a pipeline with guidance makes it."""
    config, side = module.config, side_of(pipe)
    dim = config.cross_attention_dim
    context = noise(2, _TOKENS, dim if isinstance(dim, int) else dim[0], like=module)
    kwargs: dict[str, Any] = {}
    if has_text_time(module):
        ids = 5 if getattr(pipe.config, "requires_aesthetics_score", False) else 6
        pooled = config.projection_class_embeddings_input_dim - ids * config.addition_time_embed_dim
        kwargs["added_cond_kwargs"] = {
            "text_embeds": noise(2, pooled, like=module),
            "time_ids": 100 * noise(2, ids, like=module).abs(),
        }
    if config.get("time_cond_proj_dim") is not None:
        kwargs["timestep_cond"] = noise(2, config.time_cond_proj_dim, like=module)
    return Arguments((noise(2, config.in_channels, side, side, like=module), 500, context), kwargs)


class Unet(PipeFamily):
    """Inputs: sample [B,C,H,W], timesteps [B], context [B,T,D]; for SDXL text_embeds [B,A] and time_ids [B,N].

    Where a call passes them, timestep_cond [B,G], in which a distilled model has the guidance scale, and a ControlNet's
    residuals.
    """

    component = "unet"
    chunk = latent_ranges.MOST_BATCH
    arguments = (
        "sample",
        "timestep",
        "encoder_hidden_states",
        "class_labels",
        "timestep_cond",
        "attention_mask",
        "cross_attention_kwargs",
        "added_cond_kwargs",
        "down_block_additional_residuals",
        "mid_block_additional_residual",
        "down_intrablock_additional_residuals",
        "encoder_attention_mask",
        "return_dict",
    )

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import UNet2DConditionModel

        return type(module) is UNet2DConditionModel

    def refusal(self, module: torch.nn.Module) -> Reason | None:
        unet: Any = module
        for index, block in enumerate(unet.up_blocks):
            if any(getattr(block, name, None) is not None for name in ("s1", "s2", "b1", "b2")):
                return reasons.FreeU(f"up_blocks.{index}")
        return conditions_refusal(unet.config)

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        return [*CONDITIONS, *residuals.inputs(module)]

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        usual_axes, label = axes(module, tensors)
        return usual_axes, f"{label} with residuals" if residuals.MIDDLE in tensors else label

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        unet: Any = module
        call = by_name(self.arguments, args, kwargs)
        taken = _TAKEN if unet.config.time_cond_proj_dim is None else _TAKEN | {"timestep_cond"}
        for name, value in call.items():
            if name not in taken and value is not None and value != {}:
                return Refused(reasons.ResidualInputs(name) if "residual" in name else reasons.CallArgument(name))
        inputs = conditions(unet, call)
        if isinstance(inputs, Refused):
            return inputs
        steering = residuals.taken(unet, call, inputs["sample"])
        return steering if isinstance(steering, Refused) else {**inputs, **steering}

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        added = {name: tensors[name] for name in TEXT_TIME if name in tensors}
        result: torch.Tensor = own_forward(module)(
            module,
            *(tensors[name] for name in ("sample", "timesteps", "context")),
            timestep_cond=tensors.get("timestep_cond"),
            added_cond_kwargs=added or None,
            **residuals.of_call(module, tensors),
            return_dict=False,
        )[0]
        return result

    def capture_rewrites(self, module: torch.nn.Module, tensors: Tensors) -> contextlib.AbstractContextManager[None]:
        return with_upsampled_sizes(module)

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        from diffusers.models.unets.unet_2d_condition import UNet2DConditionOutput

        return self.as_asked(UNet2DConditionOutput, output, args, kwargs)

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        call = usual_call(like, module)
        if getattr(like, "controlnet", None) is None:
            return call
        return Arguments(call.args, {**call.kwargs, **residuals.usual(module, call.args[0])})
