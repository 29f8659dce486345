"""ComfyUI's own models as OneFlow graphs: the same numbers as eager, at several sizes from one captured program."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import models

from onegraph.backends.oneflow import OneFlowBackend, counters
from onegraph.compiler import export
from onegraph.host import families
from onegraph.host.calls.vae import hook as vae_hook
from onegraph.host.capture import compile_client
from onegraph.runtime.family import Shapes
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.signature.declared import ShapeRange

CPU = torch.device("cpu")
CLOSE = 1e-5  # relative L2, float32
pytestmark = [
    pytest.mark.usefixtures("no_grad"),
    pytest.mark.skipif(not OneFlowBackend().can_run(CPU).ok, reason=OneFlowBackend().can_run(CPU).text),
]

# The full-size SD 1.5 UNet of ComfyUI's supported_models, 860 million parameters.
SD15: dict[str, Any] = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 320,
    "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": [1, 2, 4, 4],
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "transformer_depth_middle": 1,
    "use_spatial_transformer": True,
    "use_linear_in_transformer": False,
    "context_dim": 768,
    "num_heads": 8,
    "num_head_channels": -1,
    "use_checkpoint": False,
    "legacy": False,
    "use_temporal_resblock": False,
    "use_temporal_attention": False,
}


def seed_weights(module: torch.nn.Module, seed: int = 1) -> torch.nn.Module:
    """Values with sane activations, as in the small checkpoints."""
    module.load_state_dict({k: v.float() for k, v in models.seeded(module.state_dict(), seed).items()})
    return module.eval().requires_grad_(False)


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def compile_at(wrapped: torch.nn.Module, shapes: ShapeRange, given: tuple[torch.Tensor, ...], folder: Path) -> None:
    backend = OneFlowBackend()
    hint = {
        name: size
        for spec, tensor in zip(shapes.inputs, given, strict=True)
        for name, size in zip(spec.dims, tensor.shape, strict=True)
        if isinstance(name, str)
    }
    with backend.capture_settings():
        exported = export.capture(wrapped, shapes, hint, CPU)
    folder.mkdir()
    backend.compile(exported, given, folder)


def check(wrapped: torch.nn.Module, given: tuple[torch.Tensor, ...], folder: Path) -> None:
    runner = OneFlowBackend().load(folder, CPU)
    with contextlib.closing(runner):
        runner.bind({name: weights(wrapped)[name] for name in runner.constant_names()})
        assert relative_l2(runner(*given), wrapped(*given)) < CLOSE


def check_at_sizes(
    wrapped: torch.nn.Module, shapes: ShapeRange, calls: list[tuple[torch.Tensor, ...]], tmp_path: Path
) -> None:
    """Capture once, for the first call; build the others from its program."""
    kept = tmp_path / "0"
    compile_at(wrapped, shapes, calls[0], kept)
    check(wrapped, calls[0], kept)
    for number, given in enumerate(calls[1:], 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        OneFlowBackend().rebuild(kept, given, folder)
        check(wrapped, given, folder)


def unet_inputs(config: dict[str, Any], batch: int, height: int, width: int, tokens: int) -> tuple[torch.Tensor, ...]:
    labels = config.get("adm_in_channels")
    return (
        torch.randn(batch, 4, height, width),
        999 * torch.rand(batch),
        torch.randn(batch, tokens, config["context_dim"]),
        *([torch.randn(batch, labels)] if labels else []),
    )


NAMES = {"unet": ("x", "timesteps", "context", "y"), "vae_decoder": ("x",), "vae_encoder": ("x",)}


def function_of(component: str, module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> torch.nn.Module:
    return compile_client.wrap(component, module, NAMES[component][: len(given)])


def shapes_of(component: str, module: torch.nn.Module, given: tuple[torch.Tensor, ...], shapes: Shapes) -> ShapeRange:
    family = next(one for one in families.registered() if one.component == component and one.serves(module))
    return family.ranged(module, dict(zip(NAMES[component], given, strict=False)), shapes).shapes


@pytest.mark.full
@pytest.mark.parametrize("name", ["tiny_sd15", "tiny_sdxl", "tiny_refiner"])
def test_unets_at_three_sizes(name: str, tmp_path: Path) -> None:
    config = models.UNETS[name]
    unet = seed_weights(models.unet(name))
    calls = [unet_inputs(config, *sizes) for sizes in ((2, 16, 16, 77), (1, 8, 24, 154), (3, 17, 11, 1))]
    wrapped = function_of("unet", unet, calls[0])
    check_at_sizes(wrapped, shapes_of("unet", unet, calls[0], "any size"), calls, tmp_path)


def autoencoder() -> torch.nn.Module:
    from comfy.ldm.models.autoencoder import AutoencoderKL

    return seed_weights(AutoencoderKL(ddconfig={**models.VAE, "ch": 32}, embed_dim=4))


def engine_autoencoder() -> torch.nn.Module:
    """SDXL's class: without the convolutions around the latents."""
    from comfy.ldm.models.autoencoder import AutoencodingEngine

    config = {**models.VAE, "ch": 32, "ch_mult": [1, 2], "num_res_blocks": 1}
    return seed_weights(
        AutoencodingEngine(
            regularizer_config={"target": "comfy.ldm.models.autoencoder.DiagonalGaussianRegularizer"},
            encoder_config={"target": "comfy.ldm.modules.diffusionmodules.model.Encoder", "params": config},
            decoder_config={"target": "comfy.ldm.modules.diffusionmodules.model.Decoder", "params": config},
        )
    )


def taesd() -> torch.nn.Module:
    from comfy.taesd.taesd import TAESD

    return seed_weights(TAESD())


@pytest.mark.parametrize("make", [pytest.param(autoencoder, marks=pytest.mark.full), engine_autoencoder, taesd])
@pytest.mark.parametrize("part", ["decoder", "encoder"])
def test_vaes(part: vae_hook.Half, make: Any, tmp_path: Path) -> None:
    vae, component = make(), f"vae_{part}"
    sizes = ((8, 8), (7, 12)) if part == "decoder" else ((64, 64), (56, 96))
    calls = [(torch.randn(1, 4 if part == "decoder" else 3, *size),) for size in sizes]
    wrapped = function_of(component, vae, calls[0])
    check_at_sizes(wrapped, shapes_of(component, vae, calls[0], "any size"), calls, tmp_path)


def test_two_graphs_of_one_vae_both_see_its_changes(tmp_path: Path) -> None:
    vae = taesd()
    runners = {}
    for part in ("decoder", "encoder"):
        given = (torch.randn(1, 4, 8, 8) if part == "decoder" else torch.randn(1, 3, 64, 64),)
        wrapped = function_of(f"vae_{part}", vae, given)
        compile_at(wrapped, shapes_of(f"vae_{part}", vae, given, "exact"), given, tmp_path / part)
        runner = OneFlowBackend().load(tmp_path / part, CPU)
        runner.bind({n: weights(wrapped)[n] for n in runner.constant_names()})
        runners[part] = (wrapped, runner, given)
    for weight in weights(vae).values():
        weight.mul_(1.05)
    for wrapped, runner, given in runners.values():
        assert relative_l2(runner(*given), wrapped(*given)) < CLOSE
    runners.pop("decoder")[1].close()
    wrapped, runner, given = runners["encoder"]
    assert relative_l2(runner(*given), wrapped(*given)) < CLOSE
    runner.close()


@pytest.mark.full
def test_the_full_size_sd15_unet(tmp_path: Path) -> None:
    """At a latent of 16x16, captured for exactly that: about 4 GB, most of it weights."""
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    unet = UNetModel(**SD15, operations=comfy.ops.disable_weight_init).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for name, weight in unet.named_parameters():
        scale = 0.02 if weight.dim() <= 1 else 0.7 / weight[0].numel() ** 0.5
        weight.normal_(0, scale, generator=generator)
        if weight.dim() <= 1 and name.endswith("weight"):
            weight.add_(1)
    given = unet_inputs(SD15, 1, 16, 16, 77)
    wrapped = function_of("unet", unet, given)
    compile_at(wrapped, shapes_of("unet", unet, given, "exact"), given, tmp_path / "graph")
    traces = counters.traces
    check(wrapped, given, tmp_path / "graph")
    assert counters.traces == traces
