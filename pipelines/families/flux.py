"""diffusers' FluxTransformer2DModel: FLUX.1 dev, schnell, Krea, Kontext, Fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...common import reasons
from ...common.shapes import Refused
from ...runtime.family import Arguments, Axis, Input, by_name
from .family import Tensors, Transformer, noise, of_batch, own_forward

_LARGEST_SIDE = 2048  # pixels of a square image
_PIXELS = 16  # of an image's side per token
_FEWEST_TOKENS, _MOST_TOKENS = 4, (_LARGEST_SIDE // _PIXELS) ** 2
_FEWEST_CONTEXT, _MOST_CONTEXT = 2, 4096  # Redux and joined prompts are longer than the usual 512
_USUAL_CONTEXT = 512
_USUAL_SIDE = 128  # latent units


class Flux(Transformer):
    """Inputs: sample [1,N,C], context [1,T,D], pooled [1,P], timesteps [1], image_ids [N,3], text_ids [T,3].

    Models that are distilled from guidance take guidance [1] besides.
    """

    arguments = (
        "hidden_states",
        "encoder_hidden_states",
        "pooled_projections",
        "timestep",
        "img_ids",
        "txt_ids",
        "guidance",
        "joint_attention_kwargs",
        "controlnet_block_samples",
        "controlnet_single_block_samples",
        "return_dict",
        "controlnet_blocks_repeat",
    )

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import FluxTransformer2DModel

        return type(module) is FluxTransformer2DModel

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        return (
            Input("sample", (1, "image_tokens", None)),
            Input("context", (1, "context", None)),
            Input("pooled", (1, None)),
            Input("timesteps", (1,)),
            Input("image_ids", ("image_tokens", None)),
            Input("text_ids", ("context", None)),
            Input("guidance", (1,), optional=True),
        )

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        axes = (
            Axis("image_tokens", _FEWEST_TOKENS, _MOST_TOKENS, text="{} image tokens"),
            Axis("context", _FEWEST_CONTEXT, _MOST_CONTEXT, text="{} tokens"),
        )
        return axes, f"any size up to {_LARGEST_SIDE}x{_LARGEST_SIDE}"

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        call = by_name(self.arguments, args, kwargs)
        guided = ["guidance"] if call.get("guidance") is not None else []
        taken = {*self.arguments[:7], "return_dict", "controlnet_blocks_repeat"}
        tensors = self.tensors(call, [*self.arguments[:6], *guided], taken)
        if isinstance(tensors, Refused):
            return tensors
        sample, context, pooled, steps, image_ids, text_ids, *guidance = tensors
        per_image = [steps, *guidance]
        if (sample.ndim, context.ndim, pooled.ndim, image_ids.ndim, text_ids.ndim) != (3, 3, 2, 2, 2):
            return Refused(reasons.UnusualInputs())
        batch = sample.shape[0]
        context, pooled = of_batch(context, batch), of_batch(pooled, batch)
        if any(tensor.shape[0] != batch for tensor in (context, pooled, *per_image)) or any(
            t.ndim > 1 for t in per_image
        ):
            return Refused(reasons.UnusualInputs())
        # As the model itself does first of all.
        inputs = {"sample": sample, "context": context, "pooled": pooled, "timesteps": steps.to(sample.dtype)}
        inputs |= {"image_ids": image_ids.float(), "text_ids": text_ids.float()}
        return {**inputs, "guidance": guidance[0].to(sample.dtype)} if guidance else inputs

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        names = ("sample", "context", "pooled", "timesteps", "image_ids", "text_ids")
        plain = (tensors[name] for name in names)
        forward = own_forward(module)
        result: torch.Tensor = forward(module, *plain, guidance=tensors.get("guidance"), return_dict=False)[0]
        return result

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        transformer: Any = module
        config = transformer.config
        side = getattr(like, "default_sample_size", _USUAL_SIDE) // 2  # tokens
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        ids = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3)
        kwargs = {
            "hidden_states": noise(1, side * side, config.in_channels, like=transformer),
            "encoder_hidden_states": noise(1, _USUAL_CONTEXT, config.joint_attention_dim, like=transformer),
            "pooled_projections": noise(1, config.pooled_projection_dim, like=transformer),
            "timestep": 0.5 + 0 * noise(1, like=transformer),
            "img_ids": ids.to(transformer.device, transformer.dtype),
            "txt_ids": torch.zeros(_USUAL_CONTEXT, 3, device=transformer.device, dtype=transformer.dtype),
        }
        if config.guidance_embeds:
            kwargs["guidance"] = 3.5 + kwargs["timestep"] * 0
        return Arguments((), kwargs)
