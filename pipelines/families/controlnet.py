"""diffusers' ControlNetModel: of SD 1.x, SD 2.x and SDXL.

A graph gives the residuals at full strength; the strength of a call is multiplied afterwards, as the model does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...common import reasons
from ...common.outputs import Output, tensors_of
from ...common.reasons import Reason
from ...common.refused import Refused
from ...runtime.calls import latent_ranges
from ...runtime.family import Arguments, Axis, Input, by_name
from . import unet
from .family import PipeFamily, Tensors, noise, own_forward
from .unet import TEXT_TIME, conditions

_PIXELS = latent_ranges.PIXELS


class ControlNet(PipeFamily):
    """Inputs: sample [B,C,H,W], timesteps [B], context [B,T,D], image [B,3,8H,8W]; for SDXL the UNet's others, too."""

    component = "controlnet"
    chunk = latent_ranges.MOST_BATCH
    arguments = (
        "sample",
        "timestep",
        "encoder_hidden_states",
        "controlnet_cond",
        "conditioning_scale",
        "class_labels",
        "timestep_cond",
        "attention_mask",
        "added_cond_kwargs",
        "cross_attention_kwargs",
        "guess_mode",
        "return_dict",
    )

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import ControlNetModel

        return type(module) is ControlNetModel

    def refusal(self, module: torch.nn.Module) -> Reason | None:
        config: Any = module.config
        if config.global_pool_conditions:
            return reasons.UnusualConfig("global_pool_conditions", "True")
        return unet.conditions_refusal(config)

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        return [*unet.CONDITIONS, Input("image", ("batch", None, f"height*{_PIXELS}", f"width*{_PIXELS}"))]

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        return unet.axes(module, tensors)

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        call = by_name(self.arguments, args, kwargs)
        taken = {*self.arguments[:5], "added_cond_kwargs", "return_dict"}
        for name, value in call.items():
            if name not in taken and value is not None and value is not False and value != {}:
                return Refused(reasons.CallArgument(name))
        if not isinstance(call.get("conditioning_scale", 1.0), int | float):
            return Refused(reasons.CallArgument("conditioning_scale"))
        inputs = conditions(module, call)
        image = call.get("controlnet_cond")
        if isinstance(inputs, Refused):
            return inputs
        if type(image) is not torch.Tensor:
            return Refused(reasons.NotPlainInputs())
        sample = inputs["sample"]
        if image.ndim != 4 or image.shape[0] != sample.shape[0]:
            return Refused(reasons.UnusualInputs())
        return {**inputs, "image": image}

    def run(self, module: torch.nn.Module, tensors: Tensors) -> Output:
        added = {name: tensors[name] for name in TEXT_TIME if name in tensors}
        plain = (tensors[name] for name in ("sample", "timesteps", "context", "image"))
        down, middle = own_forward(module)(module, *plain, added_cond_kwargs=added or None, return_dict=False)
        return (*down, middle)

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        from diffusers.models.controlnets.controlnet import ControlNetOutput

        call = by_name(self.arguments, args, kwargs)
        scale = call.get("conditioning_scale", 1.0)
        *down, middle = (tensor * scale for tensor in tensors_of(output))
        if call.get("return_dict", True):
            return ControlNetOutput(down_block_res_samples=down, mid_block_res_sample=middle)
        return down, middle

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        config: Any = module.config
        plain = unet.usual_call(like, module)
        sample = plain.args[0]
        height, width = (_PIXELS * side for side in sample.shape[2:])
        image = noise(sample.shape[0], config.conditioning_channels, height, width, like=module)
        return Arguments((*plain.args, image), plain.kwargs)
