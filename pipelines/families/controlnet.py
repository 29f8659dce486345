"""diffusers' ControlNetModel: of SD 1.x, SD 2.x and SDXL.

A graph gives the residuals at full strength; the strength of a call is multiplied afterwards, as the model does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.outputs import Output, tensors_of
from ...common.reasons import Reason
from ...common.shapes import Refused, ShapeRange
from ...runtime import unet_sizes
from . import unet
from .family import Arguments, Inputs, Ranged, Shapes, arguments, noise, spec_of
from .unet import TEXT_TIME, conditions, levels_of

# Of ControlNetModel.forward, in order.
_ARGUMENTS = (
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
_TAKEN = {*_ARGUMENTS[:5], "added_cond_kwargs", "return_dict"}
_PIXELS = unet_sizes.PIXELS


@dataclass(frozen=True)
class ControlNet:
    """Inputs: sample [B,C,H,W], timesteps [B], context [B,T,D], image [B,3,8H,8W]; for SDXL the UNet's others, too."""

    component: str = "controlnet"
    method: str = "forward"
    chunk: int = unet_sizes.MOST_BATCH
    each_call_is_a_run: bool = False
    checks_finite: bool = False

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import ControlNetModel

        return type(module) is ControlNetModel

    def unit(self, module: torch.nn.Module) -> int:
        return _PIXELS

    def config_refusal(self, module: torch.nn.Module) -> Reason | None:
        config: Any = module.config
        if config.global_pool_conditions:
            return reasons.UnusualConfig("global_pool_conditions", "True")
        return unet.conditions_refusal(config)

    def inputs(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | Refused:
        call = arguments(_ARGUMENTS, args, kwargs)
        for name, value in call.items():
            if name not in _TAKEN and value is not None and value is not False and value != {}:
                return Refused(reasons.CallArgument(name))
        if not isinstance(call.get("conditioning_scale", 1.0), int | float):
            return Refused(reasons.CallArgument("conditioning_scale"))
        found = conditions(module, call)
        image = call.get("controlnet_cond")
        if isinstance(found, Refused):
            return found
        if type(image) is not torch.Tensor:
            return Refused(reasons.NotPlainInputs())
        sample = found["sample"]
        if image.ndim != 4 or image.shape[0] != sample.shape[0]:
            return Refused(reasons.UnusualInputs())
        return {**found, "image": image}

    def ranged(self, module: torch.nn.Module, inputs: Inputs, shapes: Shapes) -> Ranged:
        plain = unet.ranged(levels_of(module), inputs, shapes)
        image = inputs["image"]
        spec = spec_of("image", image, "batch", image.shape[1], f"height*{_PIXELS}", f"width*{_PIXELS}")
        return Ranged(ShapeRange(plain.shapes.dims, (*plain.shapes.inputs, spec)), plain.label, plain.sizes)

    def run(self, module: torch.nn.Module, inputs: Inputs) -> Output:
        own: Any = type(module).forward  # not what stands on the instance: that leads back to the graph
        added = {name: inputs[name] for name in TEXT_TIME if name in inputs}
        names = ("sample", "timesteps", "context", "image")
        down, middle = own(
            module, *(inputs[name] for name in names), added_cond_kwargs=added or None, return_dict=False
        )
        return (*down, middle)

    def prepare_capture(self, module: torch.nn.Module) -> None:
        pass

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        from diffusers.models.controlnets.controlnet import ControlNetOutput

        call = arguments(_ARGUMENTS, args, kwargs)
        scale = call.get("conditioning_scale", 1.0)
        *down, middle = (tensor * scale for tensor in tensors_of(output))
        if call.get("return_dict", True):
            return ControlNetOutput(down_block_res_samples=down, mid_block_res_sample=middle)
        return down, middle

    def only_restores(self) -> bool:
        return False

    def usual_call(self, pipe: Any, module: torch.nn.Module) -> Arguments:
        config: Any = module.config
        plain = unet.usual_call(pipe, module)
        sample = plain.args[0]
        height, width = (_PIXELS * side for side in sample.shape[2:])
        image = noise(sample.shape[0], config.conditioning_channels, height, width, like=module)
        return Arguments((*plain.args, image), plain.kwargs)
