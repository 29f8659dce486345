"""Modules that several pipelines share: loading, removing or leaving out in one of them, and what reports tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import pipes

from onegraph.pipelines import PipelineError, compile_module, compile_pipe, load_pipe, save_pipe
from onegraph.runtime.obtain.registry import Registry


def other_of(pipe: Any, **parts: Any) -> Any:
    """A pipeline with the same VAE and, unless another is given, the same UNet."""
    return pipes.sd(**{"unet": pipe.unet, "vae": pipe.vae, **parts})


def compiled_calls(pipe: Any) -> dict[str, int]:
    return {one.name: one.compiled_calls for one in pipe.onegraph.report().components}


def test_a_failed_load_leaves_what_others_compiled(registry: Registry, tmp_path: Path) -> None:
    base = compile_pipe(pipes.sd(), when_missing="eager")
    refiner = other_of(base, unet=pipes.unet(7))
    with pytest.raises(PipelineError, match="holds no saved graphs"):
        load_pipe(refiner, tmp_path)
    assert not hasattr(refiner, "onegraph") and "forward" not in vars(refiner.unet)
    pipes.image(base)
    assert compiled_calls(base) == {"unet": 2, "vae.decoder": 1, "vae.encoder": 0}


def test_a_load_leaves_others_choices(registry: Registry, tmp_path: Path) -> None:
    """The base compiles what is missing, also of what it shares; what is the refiner's alone does not."""
    source = compile_pipe(pipes.sd(), when_missing="eager")
    pipes.image(source)
    save_pipe(source, tmp_path)
    base = compile_pipe(pipes.sd(), when_missing="background", shapes="exact")
    refiner = load_pipe(other_of(base, unet=pipes.unet(7)), tmp_path)
    assert base.onegraph.components["vae.decoder"] is refiner.onegraph.components["vae.decoder"]
    choices = {name: one.options.when_missing for name, one in refiner.onegraph.components.items()}
    assert choices == {"unet": "eager", "vae.decoder": "background", "vae.encoder": "background"}
    assert base.onegraph.components["vae.decoder"].options.shapes == "exact"
    assert tmp_path in base.onegraph.components["vae.decoder"].options.folders


def test_remove_leaves_what_others_compiled(registry: Registry) -> None:
    base = compile_pipe(pipes.sd(), when_missing="eager")
    other = compile_pipe(other_of(base), when_missing="eager")
    other.onegraph.remove()
    assert other.onegraph.report()["unet"].codes == {"shared_compiled": 0}
    pipes.image(base)
    assert compiled_calls(base) == {"unet": 2, "vae.decoder": 1, "vae.encoder": 0}
    base.onegraph.remove()
    assert "forward" not in vars(base.unet) and base.onegraph.report()["unet"].codes == {"removed": 0}


def test_a_module_that_was_compiled_twice_is_removed_twice(registry: Registry) -> None:
    pipe = pipes.sd()
    unet: Any = compile_module(pipe.unet, when_missing="eager")
    compile_pipe(pipe, when_missing="eager")
    pipe.onegraph.remove()
    assert "forward" in vars(unet)
    unet.onegraph.remove()
    assert "forward" not in vars(unet)


def test_what_is_left_out_may_run_compiled_for_another(registry: Registry) -> None:
    base = compile_pipe(pipes.sd(), when_missing="eager")
    refiner = compile_pipe(other_of(base, unet=pipes.unet(7)), ignores="vae", when_missing="eager")
    pipes.image(refiner)
    report = refiner.onegraph.report()["vae.decoder"]
    assert report.compiled_calls == 1 and report.codes == {"shared_compiled": 0}, report.text
    base.onegraph.remove()
    assert refiner.onegraph.report()["vae.decoder"].codes == {"ignored": 0}


def test_another_unet_in_the_pipeline(registry: Registry) -> None:
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipes.image(pipe)
    old, pipe.unet = pipe.unet, pipes.unet(5)
    pipes.image(pipe)
    report = pipe.onegraph.report()["unet"]
    assert report.codes == {"other_module": 0} and report.compiled_calls == 2, report.text
    compile_pipe(pipe, when_missing="eager")
    assert "forward" not in vars(old), "nobody else has it"
    pipes.image(pipe)
    assert pipe.onegraph.report()["unet"].compiled_calls == 2 and not pipe.onegraph.report()["unet"].eager
    pipe.unet = compile_module(pipes.unet(3), when_missing="eager")
    pipes.image(pipe)
    report = pipe.onegraph.report()["unet"]
    assert report.compiled_calls == 2 and not report.eager, report.text


@pytest.mark.parametrize("how", ["instead", "around", "around by a closure"])
def test_a_forward_that_was_replaced_later(registry: Registry, how: str) -> None:
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipes.image(pipe)
    own, plain = pipe.unet.forward, type(pipe.unet).forward
    if how == "instead":
        pipe.unet.forward = lambda *args, **kwargs: plain(pipe.unet, *args, **kwargs)
    elif how == "around":
        pipe.unet.forward = lambda *args, own=own, **kwargs: own(*args, **kwargs)
    else:
        pipe.unet.forward = lambda *args, **kwargs: own(*args, **kwargs)
    pipes.image(pipe)
    report = pipe.onegraph.report()["unet"]
    if how == "instead":
        assert report.compiled_calls == 2 and report.codes == {"method_replaced_later": 0}, report.text
    else:
        assert report.compiled_calls == 4 and not report.eager, report.text


def test_removed_below_a_hook_and_compiled_again(registry: Registry) -> None:
    from accelerate.hooks import ModelHook, add_hook_to_module

    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    add_hook_to_module(pipe.unet, ModelHook())
    pipe.onegraph.remove()
    pipes.image(pipe)
    assert pipe.onegraph.report()["unet"].codes == {"removed": 0}
    compile_pipe(pipe, when_missing="eager")
    pipes.image(pipe)
    assert compiled_calls(pipe)["unet"] == 2 and not pipe.onegraph.report()["unet"].eager


def test_another_vae_without_these_parts(registry: Registry) -> None:
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipe.vae = None
    assert pipe.onegraph.report()["vae.decoder"].codes == {"other_module": 0}


def test_calls_from_two_pipelines_in_turns(registry: Registry) -> None:
    """One of them nobody compiled: the UNet's weights are replaced while the other one's run is over."""
    from diffusers import DDIMScheduler, StableDiffusionPipeline

    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    others = [StableDiffusionPipeline.from_pipe(one, scheduler=pipes.scheduler()) for one in (pipe, eager)]
    for number in range(3):
        for one in (pipe, eager, *others):
            one.set_progress_bar_config(disable=True)
            if number == 2:
                one.scheduler = DDIMScheduler.from_config(one.scheduler.config)
        for group in ((pipe, eager), others):
            for one in group:
                with torch.no_grad():
                    weight = one.unet.mid_block.resnets[0].conv1.weight
                    weight.data = weight.data * -1.5
            assert pipes.distance(*(pipes.image(one) for one in group)) <= 2
    assert not pipe.onegraph.report()["unet"].eager
