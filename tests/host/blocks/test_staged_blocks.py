"""Models that the host has loaded in part: the weights of one block after the other come from system memory, by the
host's own function, and blocks run compiled all the same. On a CPU both are the same memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.comfyui import loaded_in_part
from support.dit_matrix.weights import lora_of
from support.models import dits
from support.scenes.nodes import assert_close, blocks, compiled, told

from onegraph.host.weights import low_vram_blocks
from onegraph.runtime.obtain.registry import registry


@pytest.fixture(autouse=True)
def in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_in_part.simulate(monkeypatch)


@pytest.fixture
def flux() -> Any:
    """A small FLUX.1 whose graphs exist."""
    model = dits.load("flux")
    dits.sample(compiled(model), "flux")
    assert model.model.model_lowvram
    return model


def check(model: Any, wanted: torch.Tensor, steps: int = 2) -> dict[str, Any]:
    found = dits.sample(compiled(model), "flux", steps=steps)
    report, text = blocks(), told()
    assert_close(found, wanted, 1e-6)
    assert (report["eager_codes"], report["compiled"]) == ({}, 5), text
    assert 0 < report["streamed"] <= 5 and report["streamed_bytes"] > 0, text
    for copied in model.model.diffusion_model.modules():
        assert "_prefetch" not in vars(copied)
    return report


def test_a_model_loaded_in_part(flux: Any) -> None:
    wanted = dits.sample(flux, "flux")
    compiles = registry().counters.compiles
    first = check(flux, wanted)
    assert check(flux, wanted)["streamed_bytes"] == first["streamed_bytes"]
    assert registry().counters.compiles == compiles


def test_loras_are_applied_to_what_is_brought(flux: Any) -> None:
    import comfy.sd

    plain = dits.sample(flux, "flux")
    for strength in (0.8, 1.6, 0.0):
        patched = comfy.sd.load_lora_for_models(flux, None, lora_of(flux), strength, 0)[0] if strength else flux
        wanted = dits.sample(patched, "flux")
        assert torch.equal(wanted, plain) == (not strength)
        check(patched, wanted)
    assert any(getattr(layer, "weight_function", None) == [] for layer in flux.model.diffusion_model.modules())


def test_memory_that_runs_out(flux: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """That block and all after it are eager in this run."""
    wanted = dits.sample(flux, "flux")
    real, calls = low_vram_blocks.StagedBlocks._brought, []

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("no")
        return real(*args)

    with monkeypatch.context() as patching:
        patching.setattr(low_vram_blocks.StagedBlocks, "_brought", failing)
        found = dits.sample(compiled(flux), "flux")
    assert_close(found, wanted, 1e-6)
    assert blocks()["eager_codes"] == {"memory_ran_out": 8}
    check(flux, wanted)


def test_sixty_runs_hold_no_memory(flux: Any) -> None:
    import gc

    fast, counts = compiled(flux), []
    for number in range(60):
        dits.sample(fast, "flux", steps=1)
        if number % 20 == 19:
            gc.collect()
            counts.append(sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()))
    assert counts[2] - counts[1] < 10 and counts[1] - counts[0] < 10, counts
