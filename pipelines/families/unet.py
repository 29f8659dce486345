"""diffusers' UNet2DConditionModel: SD 1.x, SD 2.x, SDXL, its refiner."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.outputs import Output
from ...common.reasons import Reason
from ...common.shapes import Refused, ShapeRange, TensorSpec
from ...runtime import unet_sizes
from .family import Inputs, Ranged, Shapes

# Of UNet2DConditionModel.forward, in order.
_ARGUMENTS = (
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
_TAKEN = {"sample", "timestep", "encoder_hidden_states", "added_cond_kwargs", "return_dict"}


def _levels(module: Any) -> int:
    return len(module.config.block_out_channels)


def has_text_time(module: Any) -> bool:
    """Whether the UNet takes SDXL's pooled text embedding and its sizes besides."""
    return bool(module.config.addition_embed_type == "text_time")


@dataclass(frozen=True)
class Unet:
    """Inputs: sample [B,C,H,W], timesteps [B], context [B,T,D]; for SDXL text_embeds [B,A] and time_ids [B,N]."""

    component: str = "unet"
    method: str = "forward"
    chunk: int = unet_sizes.MOST_BATCH
    each_call_is_a_run: bool = False
    checks_finite: bool = False

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import UNet2DConditionModel

        return type(module) is UNet2DConditionModel

    def unit(self, module: torch.nn.Module) -> int:
        return unet_sizes.PIXELS

    def config_refusal(self, module: torch.nn.Module) -> Reason | None:
        unet: Any = module
        config = unet.config
        if config.encoder_hid_dim_type == "ip_image_proj":
            return reasons.IpAdapter()
        for name, usual in (("addition_embed_type", (None, "text_time")), ("class_embed_type", (None,))):
            if config[name] not in usual:
                return reasons.UnusualConfig(name, str(config[name]))
        for name in ("encoder_hid_dim_type", "num_class_embeds"):
            if config[name] is not None:
                return reasons.UnusualConfig(name, str(config[name]))
        for index, block in enumerate(unet.up_blocks):
            if any(getattr(block, name, None) is not None for name in ("s1", "s2", "b1", "b2")):
                return reasons.FreeU(f"up_blocks.{index}")
        return None

    def inputs(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | Refused:
        call = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        for name, value in call.items():
            if name not in _TAKEN and value is not None and value != {}:
                residuals = "residual" in name
                return Refused(reasons.ResidualInputs(name) if residuals else reasons.CallArgument(name))
        added = dict(call.get("added_cond_kwargs") or {})
        wanted = ("text_embeds", "time_ids") if has_text_time(module) else ()
        extra = [added.pop(name, None) for name in wanted]
        if "image_embeds" in added:
            return Refused(reasons.IpAdapter())
        if added:
            return Refused(reasons.CallArgument(f"added_cond_kwargs {next(iter(added))}"))
        sample, timestep, context = (call.get(name) for name in _ARGUMENTS[:3])
        given = [sample, context, *extra]
        if not all(type(t) is torch.Tensor for t in given):
            return Refused(reasons.NotPlainInputs())
        assert isinstance(sample, torch.Tensor) and isinstance(context, torch.Tensor)
        if sample.ndim != 4 or context.ndim != 3 or any(t.ndim != 2 for t in extra):
            return Refused(reasons.UnusualInputs())
        if isinstance(timestep, bool) or not isinstance(timestep, int | float | torch.Tensor):
            return Refused(reasons.NotPlainInputs())
        if isinstance(timestep, torch.Tensor) and (timestep.ndim > 1 or timestep.numel() not in (1, sample.shape[0])):
            return Refused(reasons.UnusualInputs())
        # As the UNet itself does, which computes with float32 whatever the timesteps are.
        steps = torch.as_tensor(timestep, device=sample.device).reshape(-1).expand(sample.shape[0]).float()
        return [sample, steps, context, *extra]

    def ranged(self, module: torch.nn.Module, inputs: Inputs, shapes: Shapes) -> Ranged:
        sample, _, context = inputs[:3]
        batch, channels, height, width = sample.shape
        sizes = {"batch": batch, "height": height, "width": width, "context": context.shape[1]}
        dtype = str(sample.dtype).removeprefix("torch.")
        levels, device = _levels(module), sample.device
        # On a GPU, attention asks whether there is a single key, and diffusers hands it the prompt's length as it is:
        # torch.export refuses a range with both answers. (Where the length is an expression, it cannot tell.)
        fewest = 2 if device.type == "cuda" else 1
        wide = functools.partial(unet_sizes.any_size, levels, device, sizes, fewest)
        dims, label = unet_sizes.exact(sizes) if shapes == "exact" else wide()
        specs = [
            TensorSpec("sample", ("batch", channels, "height", "width"), dtype),
            TensorSpec("timesteps", ("batch",), "float32"),
            TensorSpec("context", ("batch", "context", context.shape[2]), dtype),
        ]
        for name, tensor in zip(("text_embeds", "time_ids"), inputs[3:], strict=False):
            specs.append(TensorSpec(name, ("batch", tensor.shape[1]), str(tensor.dtype).removeprefix("torch.")))
        return Ranged(ShapeRange(dims, tuple(specs)), label, sizes)

    def eager(self, module: torch.nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
        return run_unet(module, *inputs)

    def output(self, output: Output, kwargs: Mapping[str, Any]) -> Any:
        from diffusers.models.unets.unet_2d_condition import UNet2DConditionOutput

        return UNet2DConditionOutput(sample=output) if kwargs.get("return_dict", True) else (output,)

    def only_restores(self) -> bool:
        return False


def run_unet(module: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """The UNet's own forward as a function of tensors."""
    sample, timesteps, context, *extra = inputs
    added = dict(zip(("text_embeds", "time_ids"), extra, strict=True)) if extra else None
    own = type(module).forward  # not what stands on the instance: that leads back to the graph
    result: torch.Tensor = own(module, sample, timesteps, context, added_cond_kwargs=added, return_dict=False)[0]
    return result
