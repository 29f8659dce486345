"""Other kinds of pipelines: parts that are not compiled run as they did, the others through the same graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image
from support import pipes

from onegraph.pipelines import compile_pipe
from onegraph.runtime.registry import Registry


def frames(pipe: Any) -> Any:
    image = Image.linear_gradient("L").resize((64, 64)).convert("RGB")
    given = {"num_frames": 2, "num_inference_steps": 2, "height": 64, "width": 64, "output_type": "np"}
    return pipe(image, **given, generator=torch.Generator().manual_seed(0)).frames[0]


def test_stable_video_diffusion_has_no_upcast_vae(registry: Registry) -> None:
    pipe, eager = compile_pipe(pipes.video(), when_missing="eager"), pipes.video()
    assert not hasattr(pipe, "upcast_vae") and pipe.vae.config.force_upcast
    assert pipes.distance(frames(pipe), frames(eager)) <= 2
    report = pipe.onegraph.report()
    assert report["vae.encoder"].compiled_calls == 1, str(report)
    assert report["unet"].codes == {"not_compilable": 0} and report["vae.decoder"].codes == {"not_compilable": 0}


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


def test_a_controlnet_steers_an_eager_unet(registry: Registry) -> None:
    pipe = compile_pipe(pipes.controlnet(pipes.sdxl()), when_missing="eager")
    eager = pipes.controlnet(pipes.sdxl())
    torch.manual_seed(0)
    call = {"image": torch.rand(1, 3, 64, 64), "height": 64, "width": 64}
    image = pipes.image(pipe, **call)
    assert pipes.distance(image, pipes.image(eager, **call)) <= 2
    assert pipes.distance(image, pipes.image(eager, **call, controlnet_conditioning_scale=0.1)) > 10
    report = pipe.onegraph.report()
    assert report["unet"].codes == {"residual_inputs": 2} and report["vae.decoder"].compiled_calls == 1, str(report)
    assert report["controlnet"].codes == {"not_compilable": 0}


@pytest.mark.full
def test_a_tiny_autoencoder(fresh: Registry) -> None:
    from diffusers import AutoencoderTiny

    def made() -> Any:
        torch.manual_seed(0)
        blocks = {"encoder_block_out_channels": (16,) * 4, "decoder_block_out_channels": (16,) * 4}
        counts = {"num_encoder_blocks": (1,) * 4, "num_decoder_blocks": (1,) * 4}
        return pipes.sd(vae=AutoencoderTiny(**blocks, **counts).eval())

    pipe, eager = compile_pipe(made(), ignores="unet"), made()
    for size in ({}, {"height": 96}):
        assert pipes.distance(pipes.image(pipe, **size), pipes.image(eager, **size)) <= 2
    assert fresh.counters.compiles == 1 and pipe.onegraph.report()["vae.decoder"].compiled_calls == 2
