"""Other weights: LoRAs, merges, another model."""

from __future__ import annotations

from typing import Any

import torch

from ..models import dits
from ..scenes.sampling import Addition, Sampling, result_of

_RANK, _MOST = 2, 14


def lora_of(model: Any, seed: int = 5) -> dict[str, torch.Tensor]:
    """A LoRA for matrices of a model's blocks, as a file has it."""
    state = {key: one for key, one in model.model.state_dict().items() if one.ndim == 2 and key.endswith(".weight")}
    keys = [key for key in state if "block" in key or "layers." in key] or [*state]
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for key in keys[:: max(1, len(keys) // _MOST)]:
        rows, columns = state[key].shape
        name = key.removesuffix(".weight")
        found[f"{name}.lora_up.weight"] = torch.randn(rows, _RANK, generator=generator) * 0.3
        found[f"{name}.lora_down.weight"] = torch.randn(_RANK, columns, generator=generator) * 0.3
    return found


def lora(strength: float, seed: int = 5) -> Addition:
    def add(sampling: Sampling) -> None:
        import comfy.sd

        loaded = lora_of(sampling.model, seed)
        sampling.model = comfy.sd.load_lora_for_models(sampling.model, None, loaded, strength, 0)[0]

    return add


def bypass_lora(strength: float) -> Addition:
    """A LoRA that computes beside the weights instead of changing them."""

    def add(sampling: Sampling) -> None:
        import comfy.sd

        loaded = lora_of(sampling.model)
        sampling.model = comfy.sd.load_bypass_lora_for_models(sampling.model, None, loaded, strength, 0)[0]

    return add


def hook_lora(strength: float) -> Addition:
    """A LoRA for the positive text alone."""

    def add(sampling: Sampling) -> None:
        import comfy.hooks

        hooks = comfy.hooks.create_hook_lora(lora_of(sampling.model), strength, 0)

        def with_hooks(text: list[Any]) -> Any:
            return comfy.hooks.set_hooks_for_conditioning(text, hooks)

        sampling.adding.append(with_hooks)
        sampling.model = sampling.model.clone()

    return add


def merged(ratio: float) -> Addition:
    def add(sampling: Sampling) -> None:
        other = dits.load(sampling.name, seed=9)
        sampling.model = result_of(
            "nodes_model_merging", "ModelMergeSimple", model1=sampling.model, model2=other, ratio=ratio
        )

    return add


def another_model(sampling: Sampling) -> None:
    """A fine-tune of the same architecture."""
    sampling.model = dits.load(sampling.name, seed=9)


def two_experts(sampling: Sampling) -> None:
    """One model for the noisy half of the steps, another for the rest."""
    sampling.second = dits.load(sampling.dit, seed=9)
    sampling.steps = 4


def two_experts_with_loras(sampling: Sampling) -> None:
    two_experts(sampling)
    lora(1.0)(sampling)
    second = Sampling(sampling.name, sampling.second)
    lora(0.6, seed=8)(second)
    sampling.second = second.model
