"""Patches of ModelPatchLoader run inside a model's own forward: its blocks stay compiled, the latent is eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.comfyui import vaes
from support.dit_matrix import inside
from support.models import dits
from support.scenes.judge import distance
from support.scenes.nodes import assert_close, blocks, compiled

from onegraph.runtime.counters import Counters

pytestmark = pytest.mark.full


def _qwen() -> tuple[Any, Any]:
    return inside.blockwise(), vaes.load("wan 2.1")


def _z_image() -> tuple[Any, Any]:
    return inside.z_image_control(**inside.SECOND_CONTROL), vaes.load("flux")


@pytest.mark.parametrize(("name", "make"), [("qwen-image", _qwen), ("z-image", _z_image)])
def test_a_patched_model_stays_compiled_and_right(name: str, make: Any, counters: Counters) -> None:
    from comfy_extras.nodes_model_patch import QwenImageDiffsynthControlnet

    apply = QwenImageDiffsynthControlnet().diffsynth_controlnet
    model = dits.load(name)
    patch, vae = make()
    fast = compiled(model)
    with torch.inference_mode():
        dits.sample(fast, name, steps=1)
        compiles, plain = counters.compiles, dits.sample(model, name)
        image = torch.rand(1, 64, 96, 3, generator=torch.Generator().manual_seed(2))
        for strength in (1.0, 0.3):
            patched = [apply(one, patch, vae, image, strength)[0] for one in (fast, model)]
            found, wanted = (dits.sample(one, name) for one in patched)
            assert_close(found, wanted)
            assert distance(wanted, plain) > 1e-3
            assert blocks()["calls"] and not blocks()["eager_codes"], blocks()
    assert counters.compiles == compiles
