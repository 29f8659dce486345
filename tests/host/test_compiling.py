"""Compiling inside a sampling run: progress, interrupt, the other architectures, exact shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import host

from onegraph.compiler.engine import Counters
from onegraph.compiler.verify import relative_l2
from onegraph.host import progress

from .conftest import NODE, compiled, said


@pytest.fixture
def interrupt_when(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Interrupt as the user's button does, once the compile says `stage`."""
    import comfy.model_management

    def arrange(stage: str) -> None:
        say = progress.CompileWatch.__call__

        def watch(self: Any, state: Any) -> None:
            if state.stage == stage:
                comfy.model_management.interrupt_current_processing()
            say(self, state)

        monkeypatch.setattr(progress.CompileWatch, "__call__", watch)

    return arrange


def test_an_interrupt_stops_the_compile_and_leaves_nothing_behind(
    checkpoint: Callable[..., Path], interrupt_when: Callable[[str], None], counters: Counters
) -> None:
    import comfy.model_management

    model = host.load(checkpoint("tiny_refiner"))
    interrupt_when("capturing")
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        host.sample(compiled(model), context_width=1280)
    assert counters.compiles == 0
    assert not list(checkpoint("tiny_refiner").parent.glob("tiny_refiner*.graphs"))
    assert progress.said[NODE] == said() == "stopped before the first step was done"


def test_a_unet_without_class_labels(checkpoint: Callable[..., Path], counters: Counters) -> None:
    """SD 1.5: attention at every level, no y, convolutional projections."""
    model = host.load(checkpoint("tiny_sd15"))
    fast = compiled(model)
    for call in ({}, {"cfg": 1.0, "height": 200}, {"tokens": 154, "batch": 2}):
        result = host.sample(fast, context_width=768, **call)
        assert relative_l2(result, host.sample(model, context_width=768, **call)) < 1e-4
    assert (counters.compiles, counters.eager_calls) == (1, 0)
    assert counters.compiled_calls == 6


def test_weights_kept_in_half_precision_and_cast_at_each_use(
    checkpoint: Callable[..., Path], counters: Counters
) -> None:
    import comfy.sd

    options = {"dtype": torch.float16}
    model = comfy.sd.load_checkpoint_guess_config(
        str(checkpoint()), output_vae=False, output_clip=False, model_options=options
    )[0]
    assert model.model.diffusion_model.dtype == torch.float16 and model.model.manual_cast_dtype == torch.float32
    assert relative_l2(host.sample(compiled(model)), host.sample(model)) < 1e-4
    assert (counters.compiles, counters.eager_calls) == (1, 0)


def test_exact_shapes_serve_their_shape_and_no_other(checkpoint: Callable[..., Path], counters: Counters) -> None:
    model = host.load(checkpoint())
    reference = host.sample(model, height=64, width=64)
    assert relative_l2(host.sample(compiled(model, shapes="exact"), height=64, width=64), reference) < 1e-4
    assert "64x64 batch 2 77 tokens" in said()
    assert counters.compiles == 1
    other = host.sample(compiled(model, shapes="exact", when_missing="eager"), height=72, width=64)
    assert torch.equal(other, host.sample(model, height=72, width=64))
    assert said().startswith("eager: the graphs kept for this model differ in shapes")
    assert counters.compiles == 1
