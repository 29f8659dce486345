"""Other kinds of pipelines: parts that are not compiled run as they did, the others through the same graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.models import pipes
from support.scenes.judge import distance

from onegraph.pipelines import compile_pipe, load_pipe, save_pipe
from onegraph.pipelines.component import PipelineOptions
from onegraph.runtime.obtain.registry import Registry


def frames(pipe: Any, seed: int = 0, **given: Any) -> Any:
    image = Image.linear_gradient("L").resize((64, 64)).convert("RGB")
    call = {"num_frames": 2, "num_inference_steps": 2, "height": 64, "width": 64, "output_type": "np", **given}
    return pipe(image, **call, generator=torch.Generator().manual_seed(seed)).frames[0]


def test_stable_video_diffusion_has_no_upcast_vae(registry: Registry) -> None:
    """Its VAE says `force_upcast`, and no pipeline method does it. The encoder is the one of other VAEs."""
    pipe, eager = compile_pipe(pipes.video(), when_missing="eager"), pipes.video()
    assert not hasattr(pipe, "upcast_vae") and pipe.vae.config.force_upcast
    assert pipes.distance(frames(pipe), frames(eager)) <= 2
    assert pipe.onegraph.report()["vae.encoder"].compiled_calls == 1


@pytest.mark.full
def test_stable_video_diffusion(registry: Registry) -> None:
    """One graph of the UNet and one of the decoder for all sizes, numbers of frames and chunks of them."""
    pipe, eager = compile_pipe(pipes.video()), pipes.video()
    plain = frames(eager)
    assert pipes.distance(frames(pipe), plain) <= 2
    for call in ({"height": 72, "width": 96}, {"num_frames": 4, "decode_chunk_size": 2}, {"fps": 25}):
        assert pipes.distance(frames(pipe, **call), frames(eager, **call)) <= 2, call
    assert pipes.distance(frames(eager, seed=1), plain) > 50
    report = pipe.onegraph.report()
    assert all(not report[name].eager for name in ("unet", "vae.decoder", "vae.encoder")), str(report)
    calls = [report[name].compiled_calls for name in ("unet", "vae.decoder", "vae.encoder")]
    assert calls == [8, 5, 4] and registry.counters.compiles <= 2
    with torch.no_grad():
        pipe.vae.decode(torch.zeros(1, 4, 8, 8), num_frames=1)
    assert pipe.onegraph.report()["vae.decoder"].codes == {"not_admitted": 1}


@pytest.mark.full
def test_stable_video_diffusion_in_float16(registry: Registry) -> None:
    """The video is as near to eager's as eager's is to itself with latents that differ by a millionth."""
    pipe, eager, noisy = (pipes.video().to(torch.float16) for _ in range(3))
    compile_pipe(pipe, when_missing="eager")
    wanted = frames(eager)
    own = noisy.vae.encoder.forward
    noisy.vae.encoder.forward = lambda x: own(x) * (1 + 1e-6) + 1e-6
    assert pipes.distance(frames(pipe), wanted) <= max(2, 2 * pipes.distance(frames(noisy), wanted))
    assert pipe.onegraph.report()["vae.encoder"].compiled_calls == 1 and pipe.vae.dtype == torch.float16


def small_sdxl() -> Any:
    return pipes.sdxl(unet=pipes.unet(xl=True, **pipes.MIDDLE))


def steered(pipe: Any, **call: Any) -> Any:
    """The image of a pipeline with ControlNets."""
    generator = torch.Generator().manual_seed(3)
    height, width = call.get("height", 64), call.get("width", 64)
    picture = torch.rand(1, 3, height, width, generator=generator)
    several = hasattr(pipe.controlnet, "nets")
    return pipes.image(pipe, **{"image": [picture] * 2 if several else picture, "height": 64, "width": 64, **call})


@pytest.mark.full
def test_a_controlnet_and_its_unet(registry: Registry) -> None:
    """One graph each for all sizes, strengths and parts of the sampling in which it steers."""
    pipe, eager = compile_pipe(pipes.controlnet(small_sdxl())), pipes.controlnet(small_sdxl())
    plain = steered(eager)
    assert pipes.distance(steered(pipe), plain) <= 2
    for call in ({"height": 72, "width": 96}, {"num_images_per_prompt": 3}, {"controlnet_conditioning_scale": 0.1}):
        assert pipes.distance(steered(pipe, **call), steered(eager, **call)) <= 2, call
    assert pipes.distance(steered(eager, controlnet_conditioning_scale=0.1), plain) > 10
    report = pipe.onegraph.report()
    assert not report["unet"].eager and not report["controlnet"].eager, str(report)
    assert report["unet"].compiled_calls == report["controlnet"].compiled_calls == 8
    assert registry.counters.compiles <= 2
    call = {"guess_mode": True, "guidance_scale": 3.0}
    assert pipes.distance(steered(pipe, **call), steered(eager, **call)) <= 2
    assert pipe.onegraph.report()["controlnet"].codes == {"call_argument": 2}


@pytest.mark.full
def test_a_controlnet_saved_before_the_first_run(registry: Registry, tmp_path: Path) -> None:
    """The UNet's graph is the one that the pipeline needs, and nothing is encoded."""
    save_pipe(compile_pipe(pipes.controlnet(small_sdxl())), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "controlnet.graphs",
        "unet.graphs",
        "vae.decoder.graphs",
    ]
    pipe = load_pipe(pipes.controlnet(small_sdxl()), tmp_path)
    steered(pipe)
    report = pipe.onegraph.report()
    assert report["unet"].compiled_calls == report["controlnet"].compiled_calls == 2, str(report)
    assert registry.counters.compiles <= 2


@pytest.mark.full
def test_two_controlnets_at_once(registry: Registry) -> None:
    pipe, eager = (pipes.controlnet(small_sdxl(), count=2) for _ in range(2))
    compile_pipe(pipe)
    scales = {"controlnet_conditioning_scale": [1.0, 0.3]}
    image = steered(eager, **scales)
    assert pipes.distance(steered(pipe, **scales), image) <= 2
    assert pipes.distance(steered(eager, controlnet_conditioning_scale=[0.3, 1.0]), image) > 5
    report = pipe.onegraph.report()
    assert all(report[name].compiled_calls == 2 for name in ("unet", "controlnet.nets.0", "controlnet.nets.1"))


@pytest.mark.full
def test_a_controlnet_of_sd(registry: Registry, tmp_path: Path) -> None:
    pipe, eager = compile_pipe(pipes.controlnet(pipes.sd())), pipes.controlnet(pipes.sd())
    image = steered(eager)
    assert pipes.distance(steered(pipe), image) <= 2
    save_pipe(pipe, tmp_path)
    loaded = load_pipe(pipes.controlnet(pipes.sd()), tmp_path)
    compiles = registry.counters.compiles
    assert pipes.distance(steered(loaded), image) <= 2
    report = loaded.onegraph.report()
    assert report["unet"].compiled_calls == report["controlnet"].compiled_calls == 2, str(report)
    assert registry.counters.compiles == compiles


def check_blocks(pipe: Any, eager: Any, *calls: dict[str, Any]) -> None:
    """Blocks of a transformer serve all calls, after those of the first one were recorded."""
    plain = pipes.image(eager)
    assert pipes.distance(pipes.image(pipe), plain) <= 2
    for call in calls:
        assert pipes.distance(pipes.image(pipe, **call), pipes.image(eager, **call)) <= 2, call
    assert pipes.distance(pipes.image(eager, seed=1), plain) > 50
    report = pipe.onegraph.report()
    assert set(report["transformer"].codes) <= {"block_recorded"}, str(report)


@pytest.mark.full
def test_flux(registry: Registry) -> None:
    """Two kinds of blocks, each with one graph for all sizes, batches and prompt lengths."""
    pipe, larger = compile_pipe(pipes.flux()), {"height": 96, "width": 80, "tokens": 12}
    several = {"num_images_per_prompt": 3, "guidance_scale": 7.0}
    check_blocks(pipe, pipes.flux(), larger, several, {"num_images_per_prompt": 9})
    assert pipe.onegraph.report()["vae.decoder"].compiled_calls == 4 and registry.counters.compiles <= 3


def _sd3_call(pipe: Any) -> tuple[torch.Tensor, ...]:
    config = pipe.transformer.config
    widths = config.joint_attention_dim, config.pooled_projection_dim
    return torch.zeros(1, 4, 8, 8), torch.zeros(1, 5, widths[0]), torch.zeros(1, widths[1]), torch.ones(1)


@pytest.mark.full
def test_stable_diffusion_3(registry: Registry) -> None:
    """Blocks in which a prompt takes part, and a last one in which it ends."""
    pipe, eager = compile_pipe(pipes.sd3()), pipes.sd3()
    larger = {"height": 192, "width": 80, "tokens": 12}
    check_blocks(pipe, eager, larger, {"height": 384, "width": 384}, {"guidance_scale": 1.0})
    assert registry.counters.compiles <= 2
    skipped = _sd3_call(pipe)
    with torch.no_grad():
        found, wanted = (one.transformer(*skipped, skip_layers=[0]).sample for one in (pipe, eager))
    assert distance(found, wanted) < 1e-5


@pytest.mark.full
def test_a_model_distilled_from_guidance(registry: Registry) -> None:
    """LCM's UNets have the guidance scale as an input besides the others."""
    pipe, eager = (pipes.sd(unet=pipes.unet(time_cond_proj_dim=16)) for _ in range(2))
    compile_pipe(pipe)
    images = [pipes.image(eager, guidance_scale=scale) for scale in (1.5, 9.0)]
    assert pipes.distance(*images) > 2
    for scale, image in zip((1.5, 9.0), images, strict=True):
        assert pipes.distance(pipes.image(pipe, guidance_scale=scale), image) <= 2
    assert pipe.onegraph.report()["unet"].compiled_calls == 4 and registry.counters.compiles <= 1
    with torch.no_grad():
        pipe.onegraph.components["unet"].set_options(PipelineOptions(when_missing="eager"))
        pipe.unet(torch.zeros(1, 4, 8, 8), 5, torch.zeros(1, 7, 32))
    assert pipe.onegraph.report()["unet"].codes == {"no_graph": 1}, "without it the graph is another one"


@pytest.mark.full
def test_a_tiny_autoencoder(fresh: Registry) -> None:
    pipe, eager = compile_pipe(pipes.sd(vae=pipes.tiny_vae()), ignores="unet"), pipes.sd(vae=pipes.tiny_vae())
    for size in ({}, {"height": 96}):
        assert pipes.distance(pipes.image(pipe, **size), pipes.image(eager, **size)) <= 2
    assert fresh.counters.compiles == 1 and pipe.onegraph.report()["vae.decoder"].compiled_calls == 2
