"""A small pipeline whose transformer's blocks are compiled: QwenImagePipeline without text encoder and VAE."""

from __future__ import annotations

from typing import Any

import torch

from .diffusers_blocks import CASES, WIDTH
from .pipes import pipe_of

CASE = CASES["QwenImageTransformer2DModel"]
BLOCKS = 2


def qwen(seed: int = 0, transformer: Any = None) -> Any:
    """The pipeline. Prompts are given as embeddings and images taken as latents."""
    from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline

    steps = FlowMatchEulerDiscreteScheduler()
    return pipe_of(QwenImagePipeline, scheduler=steps, transformer=transformer or CASE.model(seed))


def arguments() -> dict[str, Any]:
    """What the pipeline calls its transformer with, at another size: in the same form, so that its graphs serve."""
    return {**CASE.arguments(), "attention_kwargs": {}, "encoder_hidden_states_mask": None}


def latents(pipe: Any, *, side: int = 64, tokens: int = 7, steps: int = 3, **given: Any) -> torch.Tensor:
    """The latents of an image for seeded noise and a seeded prompt."""
    prompt = torch.randn(1, tokens, WIDTH, generator=torch.Generator().manual_seed(tokens))
    found: torch.Tensor = pipe(
        prompt_embeds=prompt,
        prompt_embeds_mask=torch.ones(1, tokens, dtype=torch.int64),
        height=side,
        width=side,
        num_inference_steps=steps,
        true_cfg_scale=1.0,
        output_type="latent",
        generator=torch.Generator().manual_seed(1),
        **given,
    ).images
    return found


def add_lora(pipe: Any, **config: Any) -> None:
    """Give the transformer a seeded LoRA by PEFT, as `style`."""
    from peft import LoraConfig

    torch.manual_seed(5)
    layers = ["to_q", "to_v", "add_k_proj"]
    made = LoraConfig(r=4, lora_alpha=8, target_modules=layers, init_lora_weights=False, **config)
    pipe.transformer.add_adapter(made, "style")
