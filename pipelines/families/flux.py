"""diffusers' FluxTransformer2DModel: FLUX.1 dev, schnell, Krea, Kontext, Fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.outputs import Output
from ...common.reasons import Reason
from ...common.shapes import Dim, Refused, ShapeRange
from .family import Arguments, Inputs, Ranged, Shapes, arguments, noise, of_batch, plain, spec_of, transformer_refusal

# Of FluxTransformer2DModel.forward, in order.
_ARGUMENTS = (
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
_TAKEN = {*_ARGUMENTS[:7], "return_dict", "controlnet_blocks_repeat"}
_LARGEST_SIDE = 2048  # pixels of a square image
_PIXELS = 16  # of an image's side per token
_FEWEST_TOKENS, _MOST_TOKENS = 4, (_LARGEST_SIDE // _PIXELS) ** 2
_FEWEST_CONTEXT, _MOST_CONTEXT = 2, 4096  # Redux and joined prompts are longer than the usual 512
_USUAL_CONTEXT = 512
_USUAL_SIDE = 128  # latent units


@dataclass(frozen=True)
class Flux:
    """Inputs: sample [1,N,C], context [1,T,D], pooled [1,P], timesteps [1], image_ids [N,3], text_ids [T,3].

    Models that are distilled from guidance take guidance [1] besides. One image at a time: kernels have work enough.
    """

    component: str = "transformer"
    method: str = "forward"
    chunk: int = 1
    each_call_is_a_run: bool = False
    checks_finite: bool = False

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import FluxTransformer2DModel

        return type(module) is FluxTransformer2DModel

    def unit(self, module: torch.nn.Module) -> int:
        return 1

    def config_refusal(self, module: torch.nn.Module) -> Reason | None:
        return None

    def inputs(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | Refused:
        call = arguments(_ARGUMENTS, args, kwargs)
        refusal = transformer_refusal(call, _TAKEN)
        if refusal is not None:
            return Refused(refusal)
        guided = ["guidance"] if call.get("guidance") is not None else []
        given = plain([call.get(name) for name in (*_ARGUMENTS[:6], *guided)])
        if given is None:
            return Refused(reasons.NotPlainInputs())
        sample, context, pooled, steps, image_ids, text_ids, *guidance = given
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
        found = {"sample": sample, "context": context, "pooled": pooled, "timesteps": steps.to(sample.dtype)}
        found |= {"image_ids": image_ids.float(), "text_ids": text_ids.float()}
        return {**found, "guidance": guidance[0].to(sample.dtype)} if guidance else found

    def ranged(self, module: torch.nn.Module, inputs: Inputs, shapes: Shapes) -> Ranged:
        sample, context, pooled = (inputs[name] for name in ("sample", "context", "pooled"))
        _, tokens, channels = sample.shape
        sizes = {"image_tokens": tokens, "context": context.shape[1]}
        if shapes == "exact":
            dims = tuple(Dim(name, size, size) for name, size in sizes.items())
            label = f"{tokens} image tokens {context.shape[1]} tokens"
        else:
            dims = (
                Dim("image_tokens", _FEWEST_TOKENS, _MOST_TOKENS),
                Dim("context", _FEWEST_CONTEXT, _MOST_CONTEXT),
            )
            label = f"any size up to {_LARGEST_SIDE}x{_LARGEST_SIDE}"
        specs = [
            spec_of("sample", sample, 1, "image_tokens", channels),
            spec_of("context", context, 1, "context", context.shape[2]),
            spec_of("pooled", pooled, 1, pooled.shape[1]),
            spec_of("timesteps", inputs["timesteps"], 1),
            spec_of("image_ids", inputs["image_ids"], "image_tokens", inputs["image_ids"].shape[1]),
            spec_of("text_ids", inputs["text_ids"], "context", inputs["text_ids"].shape[1]),
        ]
        if "guidance" in inputs:
            specs.append(spec_of("guidance", inputs["guidance"], 1))
        return Ranged(ShapeRange(dims, tuple(specs)), label, sizes)

    def run(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        own: Any = type(module).forward  # not what stands on the instance: that leads back to the graph
        names = ("sample", "context", "pooled", "timesteps", "image_ids", "text_ids")
        given = (inputs[name] for name in names)
        result: torch.Tensor = own(module, *given, guidance=inputs.get("guidance"), return_dict=False)[0]
        return result

    def prepare_capture(self, module: torch.nn.Module) -> None:
        pass

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        from diffusers.models.modeling_outputs import Transformer2DModelOutput

        as_dict = arguments(_ARGUMENTS, args, kwargs).get("return_dict", True)
        return Transformer2DModelOutput(sample=output) if as_dict else (output,)

    def only_restores(self) -> bool:
        return False

    def usual_call(self, pipe: Any, module: torch.nn.Module) -> Arguments:
        transformer: Any = module
        config = transformer.config
        side = getattr(pipe, "default_sample_size", _USUAL_SIDE) // 2  # tokens
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        ids = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3)
        given = {
            "hidden_states": noise(1, side * side, config.in_channels, like=transformer),
            "encoder_hidden_states": noise(1, _USUAL_CONTEXT, config.joint_attention_dim, like=transformer),
            "pooled_projections": noise(1, config.pooled_projection_dim, like=transformer),
            "timestep": 0.5 + 0 * noise(1, like=transformer),
            "img_ids": ids.to(transformer.device, transformer.dtype),
            "txt_ids": torch.zeros(_USUAL_CONTEXT, 3, device=transformer.device, dtype=transformer.dtype),
        }
        if config.guidance_embeds:
            given["guidance"] = 3.5 + given["timestep"] * 0
        return Arguments((), given)
