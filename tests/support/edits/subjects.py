"""Small models whose calls go through graphs or not, on the same live module."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from headless import host

from ..comfyui import controlnet, pages
from ..models import dits
from ..scenes.nodes import NODE, compiled_net, compiled_vae, restored
from ..scenes.places import Act, GuidedSampling, Place, once

_SIDE = 64  # pixels
STEPS = 3
_UNET = {
    "block": "middle_block.0",
    "layer": "input_blocks.0.0",
    "deep": "middle_block.1.transformer_blocks.0.ff.net.2",
    "square": "time_embed.2",
    "unbiased": "middle_block.1.transformer_blocks.0.attn1.to_v",
    "sequence": "middle_block.0.in_layers",
    "attention": "middle_block.1.transformer_blocks.0.attn1",
    "norm": "middle_block.0.in_layers.0",
}
ROLES: Mapping[str, Mapping[str, str]] = {
    "unet": _UNET,
    "controlnet": _UNET,
    "decoder": {
        "block": "decoder.mid.block_1",
        "layer": "decoder.conv_in",
        "deep": "decoder.up.0.block.0.conv1",
        "quant": "post_quant_conv",
        "square": "decoder.mid.attn_1.v",
        "norm": "decoder.mid.block_1.norm1",
    },
    "encoder": {
        "block": "encoder.down.0.block.0",
        "layer": "encoder.conv_in",
        "deep": "encoder.down.0.block.1.conv1",
        "quant": "quant_conv",
        "square": "encoder.mid.attn_1.v",
        "norm": "encoder.down.0.block.0.norm1",
    },
    "transformer": {
        "block": "single_blocks.1",
        "layer": "single_blocks.1.linear2",
        "deep": "double_blocks.1.img_mlp.2",
        "square": "double_blocks.0.img_attn.proj",
        "sequence": "double_blocks.1.img_mlp",
        "norm": "single_blocks.1.pre_norm",
    },
}


Run = Callable[[Place | None, Act], torch.Tensor]  # acts at a place between the first call and the second


@dataclass(frozen=True)
class Subject:
    """A component of a loaded model.

    Attributes:
        module: the live one, which both ways share.
        calls: of a whole run.
        eager: runs it without a graph, and acts at a place between the first call and the second.
        compiled: makes what runs it through graphs, as the node does.
        report: of the last compiled run.
    """

    name: str
    module: torch.nn.Module
    calls: int
    eager: Run
    compiled: Callable[[], Run]
    report: Callable[[], Any]

    @property
    def roles(self) -> Mapping[str, str]:
        """The submodules that edits name."""
        return ROLES[self.name]


def nothing() -> None:
    """Change nothing."""


def _report(part: str) -> Callable[[], Any]:
    def report() -> Any:
        from onegraph.host.show import status

        return status.last_runs[f"{NODE}:{part}" if part else NODE]

    return report


def _noise() -> torch.Tensor:
    return torch.randn(1, 4, _SIDE // 8, _SIDE // 8, generator=torch.Generator().manual_seed(1))


def _sigmas() -> torch.Tensor:
    """Noise levels of three steps that all matter."""
    return torch.tensor([14.6, 10.0, 5.0, 0.0])


def _conditioning() -> tuple[Any, Any]:
    return host.conditioning(77, 2048, 11), host.conditioning(77, 2048, 12)


def _sampled(
    name: str, module: Any, plain: Any, compiled: Callable[[Any], Any], sampling_of: Callable[[Any], GuidedSampling]
) -> Subject:
    """What a sampling runs, as it is loaded and as the node hands it on."""

    def run(given: Any, place: Place | None, act: Act) -> torch.Tensor:
        sampling = sampling_of(given)
        if place is not None:
            place(sampling, act)
        return sampling.run()

    def fast() -> Run:
        return functools.partial(run, compiled(plain))

    return Subject(name, module, STEPS, functools.partial(run, plain), fast, _report(""))


def unet(path: Path) -> Subject:
    """The UNet of a checkpoint."""
    patcher, given = host.load(path), (_sigmas(), _conditioning(), _noise())

    def sampling(model: Any) -> GuidedSampling:
        return GuidedSampling(model.clone(), *given)

    return _sampled("unet", patcher.model.diffusion_model, patcher, restored, sampling)


def transformer(room: float | None = None) -> Subject:
    """The small Flux, whose blocks are compiled one by one; they do more than seeded ones usually do.

    Args:
        room: the part of its weights for which pages of DynamicVRAM have room; None: they are where they belong.
    """
    patcher = dits.load("flux")
    for name, weight in patcher.model.diffusion_model.named_parameters():
        if name.endswith(".lin.weight") or name == "final_layer.linear.weight":
            weight.data.mul_(3.0)
    if room is not None:
        pages.page(patcher, room)
    sigmas = torch.tensor([1.0, 0.8, 0.5, 0.0])
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(1, 16, _SIDE // 8, _SIDE // 8, generator=generator)
    positive, negative = (
        [[torch.randn(1, 9, dits.WIDTH, generator=generator), dits.DITS["flux"].conds(generator, (1, 8, 8))]]
        for _ in range(2)
    )

    def sampling(model: Any) -> GuidedSampling:
        return GuidedSampling(model.clone(), sigmas, (positive, negative), noise)

    return _sampled("transformer", patcher.model.diffusion_model, patcher, restored, sampling)


def net(path: Path, file: Path) -> Subject:
    """A ControlNet that steers a checkpoint's UNet, which runs eager."""
    patcher, plain = host.load(path), controlnet.load(file)
    sigmas, given, noise = _sigmas(), _conditioning(), _noise()

    def sampling(control: Any) -> GuidedSampling:
        return GuidedSampling(patcher.clone(), sigmas, controlnet.steered(control, strength=4.0, given=given), noise)

    compiled = functools.partial(compiled_net, when_missing="eager")
    return _sampled("controlnet", plain.control_model, plain, compiled, sampling)


def vae(path: Path, part: str) -> Subject:
    """One half of a checkpoint's VAE. The host works on a batch of two image by image; places do not matter here."""
    loaded = host.load_vae(path)
    loaded.patcher.get_free_memory = lambda device: 1
    generator = torch.Generator().manual_seed(2)
    shape = (2, 4, 2, 2) if part == "decoder" else (2, 16, 16, 3)
    given = torch.randn(shape, generator=generator) if part == "decoder" else torch.rand(shape, generator=generator)

    def run(model: Any, place: Place | None, act: Act) -> torch.Tensor:
        with torch.inference_mode(), _between_images(model, part, act if place is not None else nothing):
            torch.manual_seed(0)
            result: torch.Tensor = (model.decode if part == "decoder" else model.encode)(given)
        return result

    def compiled() -> Run:
        return functools.partial(run, compiled_vae(loaded, backend="inductor", parts=part, when_missing="eager"))

    module = loaded.first_stage_model
    return Subject(part, module, 2, functools.partial(run, loaded), compiled, _report(part))


def _between_images(model: Any, part: str, act: Act) -> contextlib.AbstractContextManager[Any]:
    """A pack's function for the images of a batch, which acts between the first one and the second."""
    name, at = ("process_output", 1) if part == "decoder" else ("process_input", 2)
    original, changed = getattr(model, name), once(act, at)

    def function(images: torch.Tensor) -> Any:
        changed()
        return original(images)

    return patch.object(model, name, function)
