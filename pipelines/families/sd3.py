"""diffusers' SD3Transformer2DModel: Stable Diffusion 3 and 3.5."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.outputs import Output
from ...common.reasons import Reason
from ...common.shapes import Dim, Refused, ShapeRange
from ...runtime import unet_sizes
from .family import (
    Arguments,
    Inputs,
    Ranged,
    Shapes,
    arguments,
    noise,
    of_batch,
    plain,
    spec_of,
    steps_of,
    transformer_refusal,
)
from .unet import side_of

# Of SD3Transformer2DModel.forward, in order.
_ARGUMENTS = (
    "hidden_states",
    "encoder_hidden_states",
    "pooled_projections",
    "timestep",
    "block_controlnet_hidden_states",
    "joint_attention_kwargs",
    "return_dict",
    "skip_layers",
)
_TAKEN = {*_ARGUMENTS[:4], "return_dict"}
_SMALLEST, _LARGEST = 8, 256  # latent units
_FEWEST_CONTEXT, _MOST_CONTEXT = 2, 1024
_USUAL_CONTEXT = 333  # of CLIP and T5 together


def _cropped(patches: Any, height: int, width: int) -> torch.Tensor:
    """`PatchEmbed.cropped_pos_embed` by indices: the middle of the table, as slices of unknown sizes cannot be traced.

    Args:
        patches: the PatchEmbed.
        height, width: in latent units.
    """
    side = patches.pos_embed_max_size
    table = patches.pos_embed.reshape(1, side, side, -1)
    for axis, size in ((1, height), (2, width)):
        count = size // patches.patch_size
        table = table.index_select(axis, torch.arange(count, device=table.device) + (side - count) // 2)
    result: torch.Tensor = table.reshape(1, -1, table.shape[-1])
    return result


@dataclass(frozen=True)
class Sd3:
    """Inputs: sample [1,C,H,W], context [1,T,D], pooled [1,P], timesteps [1]. One image at a time, as Flux."""

    component: str = "transformer"
    method: str = "forward"
    chunk: int = 1
    each_call_is_a_run: bool = False
    checks_finite: bool = False

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import SD3Transformer2DModel

        return type(module) is SD3Transformer2DModel

    def unit(self, module: torch.nn.Module) -> int:
        return unet_sizes.PIXELS

    def config_refusal(self, module: torch.nn.Module) -> Reason | None:
        config: Any = module.config
        if not config.pos_embed_max_size:
            return reasons.UnusualConfig("pos_embed_max_size", str(config.pos_embed_max_size))
        return None

    def inputs(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | Refused:
        call = arguments(_ARGUMENTS, args, kwargs)
        refusal = transformer_refusal(call, _TAKEN)
        if refusal is not None:
            return Refused(refusal)
        given = plain([call.get(name) for name in _ARGUMENTS[:3]])
        if given is None:
            return Refused(reasons.NotPlainInputs())
        sample, context, pooled = given
        steps = steps_of(call.get("timestep"), sample)
        if (sample.ndim, context.ndim, pooled.ndim) != (4, 3, 2) or steps is None:
            return Refused(reasons.UnusualInputs())
        batch = sample.shape[0]
        context, pooled = of_batch(context, batch), of_batch(pooled, batch)
        if context.shape[0] != batch or pooled.shape[0] != batch:
            return Refused(reasons.UnusualInputs())
        return {"sample": sample, "context": context, "pooled": pooled, "timesteps": steps}

    def ranged(self, module: torch.nn.Module, inputs: Inputs, shapes: Shapes) -> Ranged:
        transformer: Any = module
        sample, context, pooled = (inputs[name] for name in ("sample", "context", "pooled"))
        _, channels, height, width = sample.shape
        sizes = {"height": height, "width": width, "context": context.shape[1]}
        if shapes == "exact":
            dims = tuple(Dim(name, size, size) for name, size in sizes.items())
            label = f"{width * unet_sizes.PIXELS}x{height * unet_sizes.PIXELS} {context.shape[1]} tokens"
        else:
            patch = transformer.config.patch_size
            largest = min(_LARGEST, patch * transformer.config.pos_embed_max_size) // patch * patch
            smallest = -(-min(_SMALLEST, largest) // patch) * patch
            dims = (
                *(Dim(name, smallest, largest, patch) for name in ("height", "width")),
                Dim("context", _FEWEST_CONTEXT, _MOST_CONTEXT),
            )
            label = f"any size {smallest * unet_sizes.PIXELS}-{largest * unet_sizes.PIXELS}"
        specs = (
            spec_of("sample", sample, 1, channels, "height", "width"),
            spec_of("context", context, 1, "context", context.shape[2]),
            spec_of("pooled", pooled, 1, pooled.shape[1]),
            spec_of("timesteps", inputs["timesteps"], 1),
        )
        return Ranged(ShapeRange(dims, specs), label, sizes)

    def run(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        own: Any = type(module).forward  # not what stands on the instance: that leads back to the graph
        result: torch.Tensor = own(module, *inputs.values(), return_dict=False)[0]
        return result

    def prepare_capture(self, module: torch.nn.Module) -> None:
        patches: Any = module.pos_embed
        patches.cropped_pos_embed = functools.partial(_cropped, patches)

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        from diffusers.models.modeling_outputs import Transformer2DModelOutput

        as_dict = arguments(_ARGUMENTS, args, kwargs).get("return_dict", True)
        return Transformer2DModelOutput(sample=output) if as_dict else (output,)

    def only_restores(self) -> bool:
        return False

    def usual_call(self, pipe: Any, module: torch.nn.Module) -> Arguments:
        transformer: Any = module
        config, side = transformer.config, side_of(pipe)
        given = {
            "hidden_states": noise(2, config.in_channels, side, side, like=transformer),
            "encoder_hidden_states": noise(2, _USUAL_CONTEXT, config.joint_attention_dim, like=transformer),
            "pooled_projections": noise(2, config.pooled_projection_dim, like=transformer),
            "timestep": 500.0,
        }
        return Arguments((), given)
