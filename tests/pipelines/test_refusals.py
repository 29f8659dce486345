"""What no graph serves runs as it did before, with the reason: same images, nothing raised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import pipes

from onegraph.common.errors import NoPipelineError, PipelineError
from onegraph.pipelines import compile_module, compile_pipe, load_pipe, onediff, save_pipe
from onegraph.runtime.obtain.registry import Registry


def code_of(pipe: Any, name: str = "unet") -> dict[str, int]:
    found: dict[str, int] = pipe.onegraph.report()[name].codes
    return found


def ran_alike(change: Callable[[Any], Any], **call: Any) -> Any:
    """A compiled pipeline that was changed and gave eager's image."""
    eager, pipe = pipes.sd(), compile_pipe(pipes.sd(), when_missing="eager")
    change(eager)
    change(pipe)
    assert pipes.distance(pipes.image(pipe, **call), pipes.image(eager, **call)) <= 2
    return pipe


class OwnProcessor:
    """An attention processor of the user's own that leaves the layer's input as it is."""

    def __call__(self, attn: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states


def test_freeu_and_back(registry: Registry) -> None:
    pipe = ran_alike(lambda p: p.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4))
    assert code_of(pipe) == {"freeu": 2}
    pipe.disable_freeu()
    pipes.image(pipe)
    assert pipe.onegraph.report()["unet"].compiled_calls == 2


@pytest.mark.parametrize("what", ["a weight", "a layer", "the whole model"])
def test_a_callback_changes_the_model_between_steps(registry: Registry, what: str) -> None:
    """Before a call that a callback may come before, the whole model is checked; else a part of it."""

    def change(pipe: Any, step: int, timestep: Any, given: dict[str, Any]) -> dict[str, Any]:
        if step == 1 and what == "a weight":
            old = pipe.unet.conv_out.weight
            pipe.unet.conv_out.weight = torch.nn.Parameter(old.detach() * -2)
        elif step == 1 and what == "a layer":
            pipe.unet.conv_out = torch.nn.Conv2d(32, 4, 1, bias=False).requires_grad_(False)
            torch.nn.init.constant_(pipe.unet.conv_out.weight, 0.01)
        elif step == 1:
            pipe.enable_freeu(s1=0.2, s2=0.2, b1=4.0, b2=4.0)
        return given

    eager, pipe = pipes.sd(), compile_pipe(pipes.sd(), when_missing="eager")
    plain = pipes.image(eager, steps=4)
    images = [pipes.image(one, steps=4, callback_on_step_end=change) for one in (eager, pipe)]
    assert pipes.distance(*images) <= 2 and pipes.distance(plain, images[0]) > 4
    assert pipe.onegraph.report()["unet"].compiled_calls == (4 if what == "a weight" else 2)


def test_own_attention_processor(registry: Registry) -> None:
    pipe = ran_alike(lambda p: p.unet.set_attn_processor(OwnProcessor()))
    assert code_of(pipe) == {"attention_processor": 2}


def test_attention_slicing(registry: Registry) -> None:
    pipe = ran_alike(lambda p: p.enable_attention_slicing())
    assert code_of(pipe) == {"attention_processor": 2}
    pipe.disable_attention_slicing()
    pipes.image(pipe)
    assert pipe.onegraph.report()["unet"].compiled_calls == 2


def test_attention_backends(registry: Registry) -> None:
    """Set on a model, which sets one for all, too; or around calls. `no_graph` means that a graph would serve."""
    from diffusers import attention_backend
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as backends

    pipe, active = compile_pipe(pipes.flux(), ignores="vae", when_missing="eager"), backends._active_backend

    def code() -> str:
        pipe.onegraph.components["transformer"].report.eager.clear()
        pipes.image(pipe)
        found = [*code_of(pipe, "transformer")]
        assert len(found) <= 1
        return found[0] if found else "no_graph"  # another test may have compiled it

    assert code() == "no_graph"
    with attention_backend("_native_math"):
        assert code() == "attention_backend"
    assert code() == "no_graph"
    try:
        pipe.transformer.set_attention_backend("_native_math")
        assert code() == "attention_processor"
        pipe.transformer.reset_attention_backend()
        assert code() == "attention_backend"
        pipe.transformer.set_attention_backend("native")
        assert code() == "no_graph"
    finally:
        backends.set_active_backend(active)
    for block in (*pipe.transformer.transformer_blocks, *pipe.transformer.single_transformer_blocks):
        block.attn.processor._attention_backend = "_native_math"
    assert code() == "attention_processor"


def test_another_processor_is_another_model(registry: Registry) -> None:
    """It computes the same by other operations, so its graph is another one, which is not there."""
    from diffusers.models.attention_processor import AttnProcessor

    pipe = ran_alike(lambda p: p.unet.set_attn_processor(AttnProcessor()))
    assert code_of(pipe) == {"no_graph": 2}


def test_configuration_is_architecture(registry: Registry) -> None:
    """The scale of inputs shows in no weight and no layer, only in the UNet's configuration."""
    pipe = compile_pipe(pipes.sd(unet=pipes.unet(center_input_sample=True)), when_missing="eager")
    eager = pipes.sd(unet=pipes.unet(center_input_sample=True))
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert code_of(pipe) == {"no_graph": 2}


def test_return_dict_by_position(registry: Registry) -> None:
    unet = compile_pipe(pipes.sd(), when_missing="eager").unet
    given = torch.randn(1, 4, 8, 8), 5, torch.randn(1, 7, 32)
    with torch.no_grad():
        assert isinstance(unet(*given, *[None] * 9, False), tuple)
        assert torch.is_tensor(unet(*given, *[None] * 9, True).sample)


def test_cross_attention_kwargs(registry: Registry) -> None:
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    torch.manual_seed(0)
    given = torch.randn(1, 4, 8, 8), 5, torch.randn(1, 7, 32)
    with torch.no_grad():
        found, wanted = (p.unet(*given, cross_attention_kwargs={"scale": 0.5}).sample for p in (pipe, eager))
    assert torch.equal(found, wanted) and code_of(pipe) == {"call_argument": 1}


@pytest.mark.parametrize("whose", ["an adapter's in blocks", "one for a batch"])
def test_residuals_that_no_graph_takes(registry: Registry, whose: str) -> None:
    """A T2I-Adapter's, which go elsewhere; one ControlNet's image for all of a batch, which eager broadcasts."""
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    torch.manual_seed(0)
    x, context = torch.randn(2, 4, 8, 8), torch.randn(2, 7, 32)
    skips = [
        torch.randn(1 if whose == "one for a batch" else 2, c, s, s) for c, s in ((32, 8), (32, 8), (32, 4), (64, 4))
    ]
    given: dict[str, Any] = {"down_block_additional_residuals": skips}
    if whose == "one for a batch":
        given["mid_block_additional_residual"] = torch.randn(1, 64, 4, 4)
    else:
        given = {"down_intrablock_additional_residuals": [torch.randn(2, 32, 4, 4), torch.randn(2, 64, 4, 4)]}
    with torch.no_grad():
        a, b = (
            one.unet(x, 5, context, **{k: v if torch.is_tensor(v) else [*v] for k, v in given.items()}).sample
            for one in (pipe, eager)
        )
    assert torch.equal(a, b) and code_of(pipe) == {"residual_inputs": 1}


def test_a_part_with_another_forward(registry: Registry) -> None:
    def change(pipe: Any) -> None:
        block = pipe.unet.mid_block
        own = block.forward
        block.forward = lambda *args, **kwargs: own(*args, **kwargs) * 0.5

    assert code_of(ran_alike(change)) == {"replaced_part": 2}


def test_a_forward_that_was_replaced_before(registry: Registry) -> None:
    pipe, eager = pipes.sd(), pipes.sd()
    for one in (pipe, eager):
        own = one.unet.forward
        one.unet.forward = lambda *args, own=own, **kwargs: tuple(t * 0.5 for t in own(*args, **kwargs))
    compile_pipe(pipe, when_missing="eager")
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert code_of(pipe) == {"method_replaced": 2}


def test_a_forward_that_wraps_ours_is_kept(registry: Registry) -> None:
    def change(pipe: Any) -> None:
        own = pipe.unet.forward
        pipe.unet.forward = lambda *args, **kwargs: tuple(t * 0.5 for t in own(*args, **kwargs))

    assert ran_alike(change).onegraph.report()["unet"].compiled_calls == 2


def test_a_method_of_a_class_is_replaced(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers.models.resnet import ResnetBlock2D

    own = ResnetBlock2D.forward
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    pipes.image(pipe)
    monkeypatch.setattr(ResnetBlock2D, "forward", lambda self, *args, **kwargs: own(self, *args, **kwargs) * 0.9)
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert code_of(pipe) == {"function_replaced": 2}


@pytest.mark.parametrize("how", ["module", "in place"])
def test_torch_compile_on_the_same_module(registry: Registry, how: str) -> None:
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    if how == "module":
        pipe.unet = torch.compile(pipe.unet, backend="eager")
    else:
        pipe.unet.compile(backend="eager")
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    report = pipe.onegraph.report()
    assert report["unet"].codes == {"torch_compiled": 0} and report["vae.decoder"].compiled_calls == 1


def test_training_mode_with_dropout(registry: Registry) -> None:
    pipe = compile_pipe(pipes.sd(unet=pipes.unet(dropout=0.5)), when_missing="eager")
    pipe.unet.train()
    pipes.image(pipe)
    assert code_of(pipe) == {"dropout": 2}


def test_gradients_run_eager(registry: Registry) -> None:
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    result = pipe.unet(torch.randn(1, 4, 8, 8), 5, torch.randn(1, 7, 32)).sample
    result.sum().backward()
    assert pipe.unet.conv_in.weight.grad is not None and code_of(pipe) == {"gradients": 1}


def test_autocast_runs_eager(registry: Registry) -> None:
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    with torch.autocast("cpu", torch.bfloat16):
        assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert code_of(pipe) == {"autocast": 2}


def test_a_pipeline_of_unknown_parts_is_unharmed(registry: Registry) -> None:
    from diffusers import DDIMPipeline, UNet2DModel

    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    ).eval()
    pipe = DDIMPipeline(unet=unet, scheduler=pipes.scheduler())
    pipe.set_progress_bar_config(disable=True)

    def draw() -> Any:
        return pipe(generator=torch.Generator().manual_seed(0), num_inference_steps=2, output_type="np").images[0]

    before = draw()
    compile_pipe(pipe, when_missing="eager")
    assert (draw() == before).all()
    assert {*pipe.onegraph.report()["unet"].codes} == {"not_compilable"}  # although its levels are alike


@pytest.mark.parametrize("given", ["folder/of/a/model", None, 3, type("Pipeline", (), {}), type("Pipeline", (), {})()])
def test_what_is_no_pipeline_is_told(given: Any, tmp_path: Path) -> None:
    for function in (compile_pipe, compile_module, onediff.compile_pipe, onediff.oneflow_compile):
        with pytest.raises(NoPipelineError, match="is no diffusers pipeline and no module") as told:
            function(given)
        assert isinstance(told.value, PipelineError) and isinstance(told.value, TypeError)
        assert str(told.value).startswith(repr(given)[:80])
    for function in (save_pipe, load_pipe, onediff.save_pipe, onediff.load_pipe):
        with pytest.raises(NoPipelineError):
            function(given, tmp_path / "graphs")
    assert not (tmp_path / "graphs").exists()


@pytest.mark.parametrize("argument", ["timestep_cond", "attention_mask", "guess_mode"])
def test_arguments_of_a_controlnet_that_no_graph_has(argument: str) -> None:
    from onegraph.common.reasons import CallArgument
    from onegraph.common.refused import Refused
    from onegraph.pipelines.families.controlnet import ControlNet

    net = pipes.controlnet(pipes.sd()).controlnet
    given: dict[str, Any] = {
        "sample": torch.randn(1, 4, 8, 8),
        "timestep": torch.tensor(5),
        "encoder_hidden_states": torch.randn(1, 7, 32),
        "controlnet_cond": torch.randn(1, 3, 64, 64),
        "return_dict": True,
    }
    read = ControlNet().read(net, (), given)
    assert not isinstance(read, Refused)
    refused = ControlNet().read(net, (), {**given, argument: True})
    assert isinstance(refused, Refused) and refused.reason == CallArgument(argument)
