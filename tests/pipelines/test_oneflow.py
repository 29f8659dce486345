"""diffusers' models as OneFlow graphs: the same numbers as eager; what it lacks operations for is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import pipes

from onegraph.backends.oneflow import OneFlowBackend
from onegraph.common.errors import CompileError
from onegraph.common.outputs import tensors_of
from onegraph.compiler import export
from onegraph.pipelines import compile_client, compile_pipe
from onegraph.pipelines.families import family_of
from onegraph.runtime.family import Tensors
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.obtain.registry import Registry

CPU = torch.device("cpu")
CLOSE = 1e-5  # relative L2, float32
pytestmark = [
    pytest.mark.usefixtures("no_grad"),
    pytest.mark.skipif(not OneFlowBackend().can_run(CPU).ok, reason=OneFlowBackend().can_run(CPU).text),
]
full = pytest.mark.full


def call_of(kind: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A model of a kind, and a call of it."""
    torch.manual_seed(0)
    x, context = torch.randn(2, 4, 8, 8), torch.randn(2, 7, 32)
    if kind in ("vae decoder", "vae encoder"):
        half: torch.nn.Module = getattr(pipes.vae(), kind.removeprefix("vae "))
        return half, (x[:1] if kind == "vae decoder" else torch.randn(1, 3, 64, 64),), {}
    if kind == "tiny vae":
        return pipes.tiny_vae().decoder, (x[:1],), {}
    if kind == "sdxl":
        added = {"text_embeds": torch.randn(2, 32), "time_ids": torch.randn(2, 6)}
        return pipes.unet(xl=True), (x, 5, torch.randn(2, 7, 64)), {"added_cond_kwargs": added}
    if kind == "video":
        return pipes.video().unet, (torch.randn(1, 3, 8, 8, 8), 5.0, torch.randn(1, 1, 32), torch.randn(1, 3)), {}
    steered = pipes.controlnet(pipes.sd())
    call = {"controlnet_cond": torch.randn(2, 3, 64, 64), "return_dict": False}
    if kind == "controlnet":
        return steered.controlnet, (x, 5, context), call
    assert kind in ("sd", "steered")
    if kind == "sd":
        return steered.unet, (x, 5, context), {}
    skips, middle = steered.controlnet(x, 5, context, **call)
    residuals = {"down_block_additional_residuals": skips, "mid_block_additional_residual": middle}
    return steered.unet, (x, 5, context), residuals


def compiled(module: torch.nn.Module, inputs: Tensors, folder: Path) -> Any:
    """A OneFlow graph of a model, bound to its weights."""
    family = family_of(module)
    assert family is not None
    wide, exact = (family.ranged(module, inputs, shapes) for shapes in ("any size", "exact"))
    wrapped = compile_client.wrap(family.component, module, [*inputs])
    backend = OneFlowBackend()
    with backend.capture_settings():
        exported = export.capture(wrapped, wide.shapes, exact.sizes, CPU)
    backend.compile(exported, tuple(tensor.contiguous() for tensor in inputs.values()), folder)
    runner = backend.load(folder, CPU)
    weights = {**dict(wrapped.named_parameters()), **dict(wrapped.named_buffers())}
    runner.bind({name: weights[name].detach() for name in runner.constant_names()})
    return runner


@pytest.mark.parametrize(
    "kind",
    [
        "tiny vae",
        *(
            pytest.param(kind, marks=full)
            for kind in ("controlnet", "sd", "sdxl", "steered", "vae decoder", "vae encoder")
        ),
    ],
)
def test_a_model_as_a_graph(kind: str, tmp_path: Path) -> None:
    module, args, kwargs = call_of(kind)
    family = family_of(module)
    assert family is not None
    inputs = family.read(module, args, kwargs)
    assert isinstance(inputs, dict)
    wanted = tensors_of(family.run(module, inputs))
    runner = compiled(module, inputs, tmp_path)
    found = tensors_of(runner(*(tensor.contiguous() for tensor in inputs.values())))
    runner.close()
    assert all(relative_l2(a, b) < CLOSE for a, b in zip(found, wanted, strict=True))


@full
@pytest.mark.parametrize(("kind", "lacks"), [("video", "aten.repeat")])
def test_what_it_lacks_is_named(kind: str, lacks: str, tmp_path: Path) -> None:
    module, args, kwargs = call_of(kind)
    family = family_of(module)
    assert family is not None
    inputs = family.read(module, args, kwargs)
    assert isinstance(inputs, dict)
    with pytest.raises(CompileError, match=lacks):
        compiled(module, inputs, tmp_path)


@full
def test_a_pipeline(fresh: Registry) -> None:
    """One graph for each size, made of the first one's capture."""
    pipe, eager = compile_pipe(pipes.sd(), backend="oneflow"), pipes.sd()
    for size in ({}, {"height": 72}):
        assert pipes.distance(pipes.image(pipe, **size), pipes.image(eager, **size)) <= 2
    report = pipe.onegraph.report()
    assert report["unet"].compiled_calls == 4 and report["vae.decoder"].compiled_calls == 2, str(report)
    assert fresh.counters.compiles == 4
