"""The SDXL refiner beside the base, sharing one VAE or each with its own; both graphs restored in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host
from support.comfyui.shared_graphs import SharedGraphs

from onegraph.graph_cache.store import Store
from onegraph.host.calls import model_hook
from onegraph.host.calls.vae import hook as vae_hook
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.obtain import registry as registry_module
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

from .conftest import NODE

pytestmark = pytest.mark.usefixtures("compiled_once", "vae_compiled_once", "refiner_compiled_once")
STEPS, SWITCH = 4, 2


@pytest.fixture(scope="module")
def refiner_compiled_once(checkpoint: Callable[..., Path], graphs_home: Path, shared_graphs: SharedGraphs) -> None:
    """The small refiner's any-size graph is in the store."""
    shared_graphs.give(graphs_home, checkpoint("tiny_refiner", vae="both"), "refiner")


def part(model: Any, latent: Any, width: int, first: int, last: int, noise: int | None) -> Any:
    """Steps `first` to `last` of a KSamplerAdvanced run."""
    import comfy.sample

    with torch.inference_mode():
        drawn = torch.zeros_like(latent) if noise is None else comfy.sample.prepare_noise(latent, noise)
        return comfy.sample.sample(
            model, drawn, STEPS, 5.0, "euler", "normal", host.conditioning(77, width, 1),
            host.conditioning(77, width, 2), latent, disable_noise=noise is None, start_step=first, last_step=last,
            force_full_denoise=last == STEPS, seed=3, disable_pbar=True,
        )  # fmt: skip


def picture(base: Any, refiner: Any, decoder: Any) -> Any:
    """Base, refiner, one VAE: the images of both stages."""
    half = part(base, torch.zeros(1, 4, 16, 16), 2048, 0, SWITCH, 3)
    done = part(refiner, half, 1280, SWITCH, STEPS, None)
    with torch.inference_mode():
        return decoder.decode(half), decoder.decode(done)


@pytest.mark.parametrize("order", ["base first", "refiner first"])
@pytest.mark.parametrize("vaes", ["one vae", "each its own"])
def test_base_and_refiner_are_restored_in_either_order(
    order: str, vaes: str, checkpoint: Callable[..., Path], graphs_home: Path
) -> None:
    paths = [checkpoint("tiny_sdxl", vae="both"), checkpoint("tiny_refiner", vae="both")]
    for _ in range(2):  # two processes, one after the other
        engine = Registry(Store(graphs_home), policy=ANY_SPEED)
        registry_module.use(engine)
        base, refiner = (host.load(path) for path in paths)
        shared = host.load_vae(paths[0])
        own = host.load_vae(paths[1]) if vaes == "each its own" else shared
        models = [model_hook.compile_model(m, model_hook.ModelNodeOptions(), NODE)[0] for m in (base, refiner)]
        decoders = [vae_hook.compile_vae(v, vae_hook.VaeNodeOptions(parts="both"), "9")[0] for v in (shared, own)]
        reference = picture(base, refiner, shared)
        if order == "refiner first":
            part(models[1], torch.zeros(1, 4, 8, 8), 1280, 0, 1, 4)
            with torch.inference_mode():
                decoders[1].decode(torch.zeros(1, 4, 8, 8))
        for decoder in decoders:
            for result, wanted in zip(picture(*models, decoder), reference, strict=True):
                assert relative_l2(result, wanted) < 1e-3
                assert float((result - wanted).abs().max()) <= 2 / 255
        assert engine.counters.eager_calls == 0
        assert len(engine.graphs()) == 3  # base, refiner and one decoder, whoever's VAE it is
        assert engine.counters.compiles == 0
    modules = {id(d.first_stage_model.onegraph_module) for d in decoders}
    assert len(modules) == (1 if vaes == "one vae" else 2)
