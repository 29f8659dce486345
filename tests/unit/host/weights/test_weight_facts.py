"""What tells whether a module's weights are what they were: anything that ComfyUI or other code does to them shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onegraph.host.weights.weight_facts import facts_of


class Patch:
    """As ComfyUI's LowVramPatch is."""

    is_lowvram_patch = True

    def __init__(self, key: str, patches: dict[str, Any]) -> None:
        self.key, self.patches = key, patches


def module(inference: bool) -> torch.nn.Module:
    with torch.inference_mode(inference):
        made = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(64, 64)).requires_grad_(False)
    layer: Any = made[1]
    layer.weight_function, layer.bias_function = [], []
    layer.weight_lowvram_function = layer.bias_lowvram_function = None
    return made


def written(layer: Any) -> None:
    layer.weight.mul_(1.01)


def behind_torchs_back(layer: Any) -> None:
    layer.weight.data.add_(0.01)


def bias(layer: Any) -> None:
    layer.bias.data[0] += 1


def exchanged(layer: Any) -> None:
    layer.weight = torch.nn.Parameter(layer.weight + 1, requires_grad=False)


def cast(layer: Any) -> None:
    layer.weight = torch.nn.Parameter(layer.weight.half(), requires_grad=False)


def computed(layer: Any) -> None:
    layer.weight_function = [lambda weight: weight]


def patched(layer: Any) -> None:
    layer.weight_lowvram_function = Patch("a", {"a": [(1.0, object(), 1.0, None, None)]})


def packs_patches(layer: Any) -> None:
    layer.weight.patches = [([(1.0, object())], "a")]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "change", [written, behind_torchs_back, bias, exchanged, cast, computed, patched, packs_patches]
)
def test_every_change_shows(change: Callable[[Any], None], inference: bool) -> None:
    made = module(inference)
    before = facts_of(made)
    assert facts_of(made) == before
    with torch.inference_mode(inference):
        change(made[1])
    assert facts_of(made) != before
    assert facts_of(made) == facts_of(made)


def test_the_same_lora_is_the_same_in_another_patch() -> None:
    """ComfyUI makes its patches anew at each load; their entries are the LoRA's own."""
    made, adapter = module(True), object()
    layer: Any = made[1]

    def load(strength: float) -> tuple[Any, ...]:
        layer.weight_lowvram_function = Patch("a", {"a": [(strength, adapter, 1.0, None, None)], "b": []})
        return facts_of(made)

    assert load(0.5) == load(0.5)
    assert load(0.5) != load(0.6)


def test_small_and_empty_weights() -> None:
    for size in (0, 1, 3, 16, 17, 100):
        made = torch.nn.Linear(size, 1).requires_grad_(False)
        assert facts_of(made) == facts_of(made)
