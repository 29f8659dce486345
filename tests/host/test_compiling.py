"""Compiling inside a sampling run: progress, interrupt, the other architectures, exact shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host
from support.comfyui.shared_graphs import SharedGraphs

from onegraph.host.show import progress
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2

from .conftest import NODE, compiled, node_text


@pytest.fixture
def interrupt_when(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Interrupt as the user's button does, once the compile says `stage`."""
    import comfy.model_management

    def arrange(stage: str) -> None:
        say = progress.CompileProgress.__call__

        def watch(self: Any, state: Any) -> None:
            if state.stage == stage:
                comfy.model_management.interrupt_current_processing()
            say(self, state)

        monkeypatch.setattr(progress.CompileProgress, "__call__", watch)

    return arrange


def test_an_interrupted_compile_leaves_nothing_behind(
    checkpoint: Callable[..., Path], interrupt_when: Callable[[str], None], counters: Counters
) -> None:
    import comfy.model_management

    model = host.load(checkpoint("tiny_refiner"))
    interrupt_when("capturing")
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        host.sample(compiled(model), context_width=1280)
    assert counters.compiles == 0
    assert not list(checkpoint("tiny_refiner").parent.glob("tiny_refiner*.graphs"))
    assert progress.texts[NODE] == node_text() == "stopped before the first step was done"


@pytest.mark.full
def test_a_unet_without_class_labels(
    checkpoint: Callable[..., Path], counters: Counters, graphs_home: Path, shared_graphs: SharedGraphs
) -> None:
    """SD 1.5: attention at every level, no y, convolutional projections."""
    shared_graphs.give(graphs_home, checkpoint("tiny_sd15"), "sd15")
    model = host.load(checkpoint("tiny_sd15"))
    fast = compiled(model)
    for call in ({}, {"cfg": 1.0, "height": 200}, {"tokens": 154, "batch": 2}):
        result = host.sample(fast, context_width=768, **call)
        assert relative_l2(result, host.sample(model, context_width=768, **call)) < 1e-4
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0)
    assert counters.compiled_calls == 6


@pytest.mark.full
def test_half_precision_weights_are_cast_at_each_use(checkpoint: Callable[..., Path], counters: Counters) -> None:
    import comfy.sd

    options = {"dtype": torch.float16}
    model = comfy.sd.load_checkpoint_guess_config(
        str(checkpoint()), output_vae=False, output_clip=False, model_options=options
    )[0]
    assert model.model.diffusion_model.dtype == torch.float16 and model.model.manual_cast_dtype == torch.float32
    assert relative_l2(host.sample(compiled(model)), host.sample(model)) < 1e-4
    assert (counters.compiles, counters.eager_calls) == (1, 0)


@pytest.mark.full
def test_weights_are_cast_to_a_chosen_compute_dtype(model: Any, counters: Counters) -> None:
    """As ModelComputeDtype chooses it. Not further from a float32 run than eager is."""
    chosen = model.clone()
    chosen.set_model_compute_dtype(torch.bfloat16)
    truth = host.sample(model)
    error = relative_l2(host.sample(compiled(chosen)), truth)
    assert 0 < error <= 1.5 * relative_l2(host.sample(chosen), truth)
    assert (counters.compiles, counters.compiled_calls, counters.eager_calls) == (1, 2, 0)


@pytest.mark.full
def test_exact_shapes_serve_their_shape_and_no_other(checkpoint: Callable[..., Path], counters: Counters) -> None:
    model = host.load(checkpoint())
    reference = host.sample(model, height=64, width=64)
    assert relative_l2(host.sample(compiled(model, shapes="exact"), height=64, width=64), reference) < 1e-4
    assert "64x64 batch 2 77 tokens" in node_text()
    assert counters.compiles == 1
    other = host.sample(compiled(model, shapes="exact", when_missing="eager"), height=72, width=64)
    assert torch.equal(other, host.sample(model, height=72, width=64))
    assert node_text().startswith("uncompiled: the graphs cached for this model differ in shapes")
    assert counters.compiles == 1


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.full), "cuda"])
def test_a_four_level_unet_is_captured_for_any_size(device: str) -> None:
    """As SD 1.5 and the refiner have, whose lowest level has an eighth of the rows. Captured on the CPU both times."""
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
    from headless import models

    from onegraph import backends
    from onegraph.compiler import export
    from onegraph.host.capture import compile_client
    from onegraph.host.families.unet import Unet
    from onegraph.runtime.calls import latent_ranges
    from onegraph.signature.declared import Dim, ShapeRange

    config: dict[str, Any] = {
        **models._COMMON, **models.UNETS["tiny_sd15"], "num_res_blocks": [1] * 4, "channel_mult": [1] * 4,
        "transformer_depth": [0, 0, 0, 1], "transformer_depth_output": [0] * 6 + [1, 1],
    }  # fmt: skip
    module = UNetModel(**config, operations=comfy.ops.disable_weight_init).eval().requires_grad_(False)
    given = {"x": torch.zeros(2, 4, 32, 32), "timesteps": torch.zeros(2), "context": torch.zeros(2, 77, 768)}
    axes, label = latent_ranges.any_size(len(config["channel_mult"]), torch.device(device), 32, 32)
    assert label == "any size 128-2048"
    ranged = Unet().ranged(module, given, "any size")
    dims = tuple(Dim(axis.name, axis.low, axis.high, axis.step) for axis in axes)
    shapes, wrapped = ShapeRange(dims, ranged.shapes.inputs), compile_client.wrap("unet", module, [*given])
    with backends.get("inductor").capture_settings():
        exported = export.capture(wrapped, shapes, ranged.sizes, torch.device("cpu"))
    assert exported.graph_signature.user_outputs
