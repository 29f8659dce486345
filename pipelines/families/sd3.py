"""diffusers' SD3Transformer2DModel: Stable Diffusion 3 and 3.5."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.shapes import Refused
from ...runtime.calls.latent_ranges import PIXELS
from ...runtime.family import Arguments, Axis, Input, by_name
from .family import Tensors, Transformer, noise, of_batch, own_forward, steps_of
from .unet import side_of

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


class Sd3(Transformer):
    """Inputs: sample [1,C,H,W], context [1,T,D], pooled [1,P], timesteps [1]."""

    arguments = (
        "hidden_states",
        "encoder_hidden_states",
        "pooled_projections",
        "timestep",
        "block_controlnet_hidden_states",
        "joint_attention_kwargs",
        "return_dict",
        "skip_layers",
    )

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import SD3Transformer2DModel

        return type(module) is SD3Transformer2DModel

    def refusal(self, module: torch.nn.Module) -> Reason | None:
        config: Any = module.config
        if not config.pos_embed_max_size:
            return reasons.UnusualConfig("pos_embed_max_size", str(config.pos_embed_max_size))
        return None

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        return (
            Input("sample", (1, None, "height", "width")),
            Input("context", (1, "context", None)),
            Input("pooled", (1, None)),
            Input("timesteps", (1,)),
        )

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        config: Any = module.config
        patch = config.patch_size
        largest = min(_LARGEST, patch * config.pos_embed_max_size) // patch * patch
        smallest = -(-min(_SMALLEST, largest) // patch) * patch
        axes = (
            *(Axis(name, smallest, largest, patch, PIXELS) for name in ("height", "width")),
            Axis("context", _FEWEST_CONTEXT, _MOST_CONTEXT, text="{} tokens"),
        )
        return axes, f"any size {smallest * PIXELS}-{largest * PIXELS}"

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        call = by_name(self.arguments, args, kwargs)
        tensors = self.tensors(call, self.arguments[:3], {*self.arguments[:4], "return_dict"})
        if isinstance(tensors, Refused):
            return tensors
        sample, context, pooled = tensors
        steps = steps_of(call.get("timestep"), sample)
        if (sample.ndim, context.ndim, pooled.ndim) != (4, 3, 2) or steps is None:
            return Refused(reasons.UnusualInputs())
        batch = sample.shape[0]
        context, pooled = of_batch(context, batch), of_batch(pooled, batch)
        if context.shape[0] != batch or pooled.shape[0] != batch:
            return Refused(reasons.UnusualInputs())
        return {"sample": sample, "context": context, "pooled": pooled, "timesteps": steps}

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        result: torch.Tensor = own_forward(module)(module, *tensors.values(), return_dict=False)[0]
        return result

    def capture_rewrites(self, module: torch.nn.Module, tensors: Tensors) -> contextlib.AbstractContextManager[None]:
        patches: Any = module.pos_embed
        patches.cropped_pos_embed = functools.partial(_cropped, patches)
        return contextlib.nullcontext()

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        transformer: Any = module
        config, side = transformer.config, side_of(like)
        kwargs = {
            "hidden_states": noise(2, config.in_channels, side, side, like=transformer),
            "encoder_hidden_states": noise(2, _USUAL_CONTEXT, config.joint_attention_dim, like=transformer),
            "pooled_projections": noise(2, config.pooled_projection_dim, like=transformer),
            "timestep": 500.0,
        }
        return Arguments((), kwargs)
