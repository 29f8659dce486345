"""What OneDiffX left to its users is handled inside: a test for each situation, named after it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import pipes

from onegraph.common import reasons
from onegraph.compiler.process.progress import Progress
from onegraph.pipelines import PipelineError, compile_module, compile_pipe, load_pipe, save_pipe
from onegraph.runtime.obtain import compiles
from onegraph.runtime.obtain.registry import Registry


def refiner_of(base: Any) -> Any:
    """An image-to-image pipeline with a UNet of its own, which takes five sizes, and the base's VAE object."""
    from diffusers import StableDiffusionXLImg2ImgPipeline

    return pipes.pipe_of(
        StableDiffusionXLImg2ImgPipeline,
        vae=base.vae,
        unet=pipes.unet(7, xl=True, ids=5, **pipes.MIDDLE),
        scheduler=pipes.scheduler(),
        text_encoder_2=base.text_encoder_2,
        requires_aesthetics_score=True,
        add_watermarker=False,
    )


def refined(refiner: Any, image: Any) -> Any:
    given = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    return pipes.image(refiner, image=given, strength=0.6, steps=4)


@pytest.mark.parametrize("order", ["base first", pytest.param("refiner first", marks=pytest.mark.full)])
def test_base_and_refiner_share_one_vae(registry: Registry, tmp_path: Path, order: str) -> None:
    """Compiled, saved and loaded twice, in any order; the encoder is in the refiner's folder alone.

    The refiner's UNet takes five sizes and the base's six: each has its own graph, and one of the orders compiles both.
    """
    unets = order == "refiner first"
    eager = pipes.sdxl()
    base = compile_pipe(pipes.sdxl(), when_missing="wait" if unets else "eager")
    refiner = compile_pipe(refiner_of(base), when_missing="wait" if unets else "eager")
    first = pipes.image(eager)
    wanted = refined(refiner_of(eager), first)
    assert pipes.distance(pipes.image(base), first) <= 2
    assert pipes.distance(refined(refiner, first), wanted) <= 2
    save_pipe(base, tmp_path / "base")
    save_pipe(refiner, tmp_path / "refiner")

    again = pipes.sdxl()
    pair = {"base": again, "refiner": refiner_of(again)}
    for name in sorted(pair, reverse=order != "base first") * 2:
        load_pipe(pair[name], tmp_path / name)
    assert pipes.distance(pipes.image(again), first) <= 2
    assert pipes.distance(refined(pair["refiner"], first), wanted) <= 2
    report = pair["refiner"].onegraph.report()
    assert report["vae.encoder"].compiled_calls == 1, str(report)
    assert report["vae.decoder"].compiled_calls == 2, "both pipelines' calls of the one decoder"
    if unets:
        assert report["unet"].compiled_calls == 2 and again.onegraph.report()["unet"].compiled_calls == 2
    assert registry.counters.compiles <= 2 * unets


@pytest.mark.full
def test_base_and_refiner_share_a_tiny_vae(registry: Registry, tmp_path: Path) -> None:
    base = pipes.sdxl(vae=pipes.tiny_vae())
    refiner = refiner_of(base)
    first = pipes.image(base)
    wanted = refined(refiner, first)
    for one in (base, refiner):
        compile_pipe(one, ignores="unet")
    assert pipes.distance(refined(refiner, first), wanted) <= 2
    for one, folder in ((base, "base"), (refiner, "refiner")):
        save_pipe(one, tmp_path / folder)
    compiles = registry.counters.compiles
    again = pipes.sdxl(vae=pipes.tiny_vae())
    pair = {"base": again, "refiner": refiner_of(again)}
    for name in ("refiner", "base", "base", "refiner"):
        load_pipe(pair[name], tmp_path / name)
    assert pipes.distance(pipes.image(again), first) <= 2
    assert pipes.distance(refined(pair["refiner"], first), wanted) <= 2
    report = pair["refiner"].onegraph.report()
    assert report["vae.encoder"].compiled_calls == 1 and report["vae.decoder"].compiled_calls == 2, str(report)
    assert registry.counters.compiles == compiles


def test_a_vae_with_force_upcast_in_float16(registry: Registry, tmp_path: Path) -> None:
    """The pipeline turns the VAE to float32 for each image and back: the graph is float32's."""
    pipe = compile_pipe(pipes.sdxl(), ignores="unet", when_missing="eager")
    eager = pipes.sdxl()
    for one in (pipe, eager):
        one.to(torch.float16)
        assert one.vae.config.force_upcast
    for _ in range(2):
        assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
        assert pipe.vae.dtype == torch.float16
    assert pipe.onegraph.report()["vae.decoder"].compiled_calls == 2, str(pipe.onegraph.report())
    save_pipe(pipe, tmp_path)
    names = [path.name for path in tmp_path.glob("*/*/*/*")]
    assert len(names) == 1 and "float32" in names[0]


def test_encoder_and_decoder_are_finite(registry: Registry) -> None:
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    torch.manual_seed(3)
    x = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        latents = pipe.vae.encode(x).latent_dist.mode()
        image = pipe.vae.decode(latents).sample
        wanted = eager.vae.decode(eager.vae.encode(x).latent_dist.mode()).sample
    assert bool(torch.isfinite(image).all()) and torch.allclose(image, wanted, atol=1e-3)
    report = pipe.onegraph.report()
    assert report["vae.encoder"].compiled_calls == report["vae.decoder"].compiled_calls == 1


def test_a_graph_that_is_not_finite_is_retired(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is a copy: the shared store keeps the sound graph."""
    from onegraph.runtime.graphs.loaded_graph import LoadedGraph, Result

    moved: list[Path] = []
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    pipes.image(pipe)
    monkeypatch.setattr(registry.store, "quarantine", moved.append)
    own = LoadedGraph.call

    def spoilt(self: LoadedGraph, *args: Any, **kwargs: Any) -> Any:
        result = own(self, *args, **kwargs)
        if self.entry.manifest.key["component"] == "vae_decoder" and isinstance(result, Result):
            return Result(result.output * torch.nan)
        return result

    monkeypatch.setattr(LoadedGraph, "call", spoilt)
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert pipe.onegraph.report()["vae.decoder"].codes == {"graph_not_finite": 1} and len(moved) == 1
    pipes.image(pipe)
    assert pipe.onegraph.report()["vae.decoder"].codes == {"graph_not_finite": 2}


def test_a_vae_that_overflows_itself(registry: Registry) -> None:
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    with torch.no_grad():
        pipe.vae.decoder.conv_out.bias.fill_(torch.inf)
        pipe.vae.decode(torch.zeros(1, 4, 8, 8))
    assert pipe.onegraph.report()["vae.decoder"].codes == {"result_not_finite": 1}


@pytest.mark.parametrize("how", ["slicing", "tiling"])
def test_a_vae_in_slices_or_tiles(registry: Registry, how: str) -> None:
    eager, pipe = pipes.sd(), compile_pipe(pipes.sd(), when_missing="eager")
    for one in (eager, pipe):
        one.vae.enable_slicing() if how == "slicing" else one.vae.enable_tiling()
    size = {"height": 128, "width": 96, "num_images_per_prompt": 2}
    assert pipes.distance(pipes.image(pipe, **size), pipes.image(eager, **size)) <= 2
    report = pipe.onegraph.report()["vae.decoder"]
    assert not report.eager and report.compiled_calls == (2 if how == "slicing" else 6), report.text


def test_tiles_never_compile(fresh: Registry) -> None:
    pipe = compile_pipe(pipes.sd(), ignores="unet")
    pipe.vae.enable_tiling()
    pipes.image(pipe, height=128, width=96)
    assert fresh.counters.compiles == 0
    assert pipe.onegraph.report()["vae.decoder"].codes == {"no_graph": 6}


def test_other_sizes_batches_and_prompts(registry: Registry) -> None:
    """One graph for all; the process's memory after ten sizes is what it was after two."""
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    for number in range(10):
        call = {"height": 64 + 8 * number, "width": 160 - 8 * number, "tokens": 77 * (1 + number % 2), "steps": 1}
        assert pipes.distance(pipes.image(pipe, **call), pipes.image(eager, **call)) <= 2, call
        if number == 1:
            held, resident = registry.eviction.held_bytes(), pipes.resident_bytes()
    assert len(registry.graphs()) == 2 and registry.eviction.held_bytes() <= 1.1 * held
    assert pipes.resident_bytes() <= 1.1 * resident
    assert not pipe.onegraph.report()["unet"].eager


def test_two_pipelines_from_one_set_of_parts(registry: Registry) -> None:
    from diffusers import StableDiffusionImg2ImgPipeline

    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    other = StableDiffusionImg2ImgPipeline.from_pipe(pipe)
    assert not hasattr(other, "onegraph")
    compile_pipe(other, ignores="vae.decoder", when_missing="eager")
    eager = StableDiffusionImg2ImgPipeline.from_pipe(pipes.sd())
    other.set_progress_bar_config(disable=True)
    eager.set_progress_bar_config(disable=True)
    first = pipes.image(pipe)
    assert pipes.distance(refined(other, first), refined(eager, first)) <= 2
    report = other.onegraph.report()
    assert report["unet"].compiled_calls == 4 and report["vae.encoder"].compiled_calls == 1, str(report)
    assert pipe.onegraph.report()["vae.decoder"].compiled_calls == 2, "ignored by the other, not taken from this"


def test_two_pipelines_in_two_threads(registry: Registry) -> None:
    shared = pipes.sd()
    compile_pipe(shared, when_missing="eager")
    other = compile_pipe(pipes.sd(seed=4), when_missing="eager")
    pairs = [(shared, pipes.image(pipes.sd())), (other, pipes.image(pipes.sd(seed=4)))]
    worst: list[float] = []

    def work(pipe: Any, wanted: Any) -> None:
        worst.extend(pipes.distance(pipes.image(pipe), wanted) for _ in range(4))

    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worst) == 8 and max(worst) <= 2
    assert not shared.onegraph.report()["unet"].eager and not other.onegraph.report()["unet"].eager


def test_moving_the_pipeline_to_another_dtype_and_back(registry: Registry) -> None:
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    pipes.image(pipe)
    for one in (pipe, eager):
        one.to(torch.bfloat16)
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert pipe.onegraph.report()["unet"].codes == {"no_graph": 2}
    for one in (pipe, eager):
        one.to(torch.float32)
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert pipe.onegraph.report()["unet"].compiled_calls == 4


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_of_accelerate(registry: Registry, when: str) -> None:
    """A hook on the whole module, as model offloading has, stays where it is and a graph serves below it."""
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    class Doubling(ModelHook):
        def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
            return (args[0] * 2, *args[1:]), kwargs

    pipe, eager = pipes.sd(), pipes.sd()
    if when == "after":
        compile_pipe(pipe, when_missing="eager")
    for one in (pipe, eager):
        add_hook_to_module(one.unet, Doubling())
    if when == "before":
        compile_pipe(pipe, when_missing="eager")
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert pipe.onegraph.report()["unet"].compiled_calls == 2, str(pipe.onegraph.report())
    for one in (pipe, eager):
        remove_hook_from_module(one.unet)
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert pipe.onegraph.report()["unet"].compiled_calls == 4


@pytest.mark.parametrize("when", ["before", "after"])
def test_model_offloading(registry: Registry, when: str) -> None:
    """diffusers' own, with the CPU as the device that models are brought to, as there is no other here."""
    pipe, eager = pipes.sd(), pipes.sd()
    if when == "after":
        compile_pipe(pipe, when_missing="eager")
    pipe.enable_model_cpu_offload(device="cpu")
    if when == "before":
        compile_pipe(pipe, when_missing="eager")
    for _ in range(2):
        assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    report = pipe.onegraph.report()
    assert report["unet"].compiled_calls == 4 and report["vae.decoder"].compiled_calls == 2, str(report)


def test_hooks_on_layers_run_eager(registry: Registry) -> None:
    from accelerate.hooks import ModelHook, add_hook_to_module

    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    add_hook_to_module(pipe.unet.conv_in, ModelHook())
    pipes.image(pipe)
    assert pipe.onegraph.report()["unet"].codes == {"library_hook": 2}


def test_weights_in_another_dtype_between_layers(registry: Registry) -> None:
    """diffusers' layerwise casting stores weights in a smaller dtype and casts them at each use."""
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    for one in (pipe, eager):
        one.unet.enable_layerwise_casting(storage_dtype=torch.bfloat16, compute_dtype=torch.float32)
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert pipe.onegraph.report()["unet"].codes == {"library_hook": 2}


def test_ctrl_c_stops_a_compile(fresh: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiling process is gone when the exception arrives, and the next call begins anew."""
    seen: list[Progress] = []
    children: list[Any] = []
    from onegraph.compiler.process import supervisor

    own = supervisor._start
    monkeypatch.setattr(supervisor, "_start", lambda *args: children.append(own(*args)) or children[-1])
    pipe = compile_pipe(pipes.sd(), ignores="vae")

    def interrupt(label: str) -> Any:
        def watch(progress: Progress) -> None:
            seen.append(progress)
            raise KeyboardInterrupt

        return watch

    monkeypatch.setattr(pipe.onegraph.components["unet"], "follow", interrupt)
    for attempt in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            pipes.image(pipe)
        assert len(seen) == len(children) == attempt and children[-1].poll() is not None
    assert fresh.counters.compiles == 0 and not fresh.compiles.under_way()


def test_a_bar_while_compiling(fresh: Registry, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def compiled(*args: Any, **kwargs: Any) -> Any:
        for share in (0.1, 0.5, 1.0):
            args[2](Progress("compiling", 1.0, share, 3.0))
        raise compiles.CompileError("stopped by the test")

    monkeypatch.setattr(compiles, "compile_in_child", compiled)
    pipe = compile_pipe(pipes.sd(), ignores="vae")
    pipe.set_progress_bar_config(disable=False)
    pipes.image(pipe)
    assert "compiling unet (any size 64-2048)" in capsys.readouterr().err
    assert pipe.onegraph.report()["unet"].codes == {"compile_failed": 2}


def test_a_folder_saved_for_other_hardware(registry: Registry, tmp_path: Path, caplog: Any) -> None:
    from onegraph.backends.inductor.backend import InductorBackend

    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipes.image(pipe)
    save_pipe(pipe, tmp_path)
    own = InductorBackend.target
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InductorBackend, "target", lambda self, device: {**own(self, device), "cpu": "another"})
        loaded = load_pipe(pipes.sd(), tmp_path)
        assert "is for another machine or version (target (cpu" in caplog.text
        image = pipes.image(loaded)
    assert pipes.distance(image, pipes.image(pipes.sd())) <= 2
    assert isinstance(loaded.onegraph.saved["unet"], reasons.SavedForOther)
    assert "another machine or version" in str(loaded.onegraph.report())


def test_a_single_module(registry: Registry, tmp_path: Path) -> None:
    unet, eager = compile_module(pipes.unet(), when_missing="eager"), pipes.unet()
    given = torch.ones(2, 4, 8, 8), 5, torch.ones(2, 77, 32)
    with torch.no_grad():
        assert torch.allclose(unet(*given).sample, eager(*given).sample, atol=1e-4)
    unet.save_graph(tmp_path / "unet")  # type: ignore[operator]
    with pytest.raises(PipelineError, match="already holds 1 saved graphs"):
        unet.save_graph(tmp_path / "unet")  # type: ignore[operator]
    other = compile_module(pipes.unet(3), when_missing="eager")
    other.load_graph(tmp_path / "unet")  # type: ignore[operator]
    with torch.no_grad():
        other(*given)
    report = other.onegraph.report()  # type: ignore[union-attr, operator]
    assert report["unet"].compiled_calls == 1
    strange = compile_module(torch.nn.Linear(2, 2))
    assert strange(torch.zeros(1, 2)).shape == (1, 2)
    assert strange.onegraph.report()["Linear"].codes == {"not_compilable": 0}  # type: ignore[union-attr, operator]
