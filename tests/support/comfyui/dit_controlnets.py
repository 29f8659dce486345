"""Small ControlNets for diffusion transformers, of ComfyUI's own classes, with seeded weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from support.models import dits


@dataclass(frozen=True)
class Net:
    """A ControlNet.

    Attributes:
        model: of `dits`, that it steers.
        make: makes its module.
        ratio: of its picture's sides to the latents'.
        options: of ComfyUI's ControlNet object.
    """

    model: str
    make: Callable[[], Any]
    ratio: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


def _operations() -> Any:
    import comfy.ops

    return {"operations": comfy.ops.disable_weight_init, "dtype": torch.float32, "device": "cpu"}


def flux(**options: Any) -> Any:
    """The module of one for Flux."""
    from comfy.ldm.flux.controlnet import ControlNetFlux

    config = {**dits.DITS["flux"].unet, "depth": 2, "depth_single_blocks": 2}
    return ControlNetFlux(**{**config, **options}, **_operations())


def _qwen() -> Any:
    from comfy.ldm.qwen_image.controlnet import QwenImageControlNetModel

    config = {**dits.DITS["qwen-image"].unet, "num_layers": 2}
    return QwenImageControlNetModel(**config, **_operations())


def _sd3() -> Any:
    from comfy.cldm.mmdit import ControlNet

    unet = dits.DITS["sd 3.5"].unet
    return ControlNet(num_blocks=2, control_latent_channels=3, **unet, **_operations())


def _as_latents(picture: torch.Tensor) -> torch.Tensor:
    """A picture [B,3,H,W] in the place of what a VAE would make of it: [B,16,1,H,W]."""
    return picture.repeat(1, 6, 1, 1)[:, :16, None]


_WITH_GUIDANCE = {"extra_conds": ["y", "guidance"]}
NETS: Mapping[str, Net] = {
    "flux": Net("flux", lambda: flux(latent_input=True, control_latent_channels=3), options=_WITH_GUIDANCE),
    "flux by a picture": Net("flux", flux, ratio=8, options=_WITH_GUIDANCE),
    "qwen-image": Net("qwen-image", _qwen, options={"preprocess_image": _as_latents}),
    "sd 3": Net("sd 3.5", _sd3),
}


def load(name: str, seed: int = 4) -> Any:
    """One of the ControlNets, as ComfyUI's ControlNet object."""
    import comfy.controlnet
    import comfy.model_management

    net = NETS[name]
    module = dits.seeded(net.make(), seed)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    device = comfy.model_management.get_torch_device()
    return comfy.controlnet.ControlNet(module, compression_ratio=net.ratio, load_device=device, **net.options)


@contextlib.contextmanager
def steering(net: Any, strength: float = 1.0) -> Iterator[None]:
    """While this lasts a ControlNet steers all samplings of `dits`."""
    picture = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    dits.control = net.copy().set_cond_hint(picture, strength, (0.0, 1.0))
    try:
        yield
    finally:
        dits.control = None
