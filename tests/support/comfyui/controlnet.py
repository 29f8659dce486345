"""A small ControlNet with seeded weights that ComfyUI's own ControlNetLoader takes, and what it steers."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from headless import host, models


def write_controlnet(name: str, path: Path, seed: int = 5, device: str = "cpu") -> Path:
    """Write a ControlNet for one of the models; strong enough to change the image. Needs a booted host."""
    import comfy.cldm.cldm
    import comfy.ops
    from safetensors.torch import save_file

    config = {**models._COMMON, **models.config(name)}
    for unknown in ("out_channels", "transformer_depth_output"):
        config.pop(unknown)
    net = comfy.cldm.cldm.ControlNet(**config, hint_channels=3, device="meta", operations=comfy.ops.disable_weight_init)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(models.seeded(net.state_dict(), seed, device), path)
    return path


def load(path: Path) -> Any:
    """The CONTROL_NET of a file, by ComfyUI's own loader."""
    import comfy.controlnet

    return comfy.controlnet.load_controlnet(str(path))


def adapter(channels: int) -> Any:
    """The T2I adapter of one layer that tests' node makes in a server."""
    file = host.ROOT / "tests" / "nodes" / "onegraph_testing" / "t2i_adapter.py"
    return runpy.run_path(str(file))["made"](channels)


def steered(net: Any, *, strength: float = 1.0, percent: tuple[float, float] = (0.0, 1.0), given: Any = None) -> Any:
    """Positive and negative conditioning as ControlNetApplyAdvanced makes them; without `given`, of the usual ones."""
    import torch

    from nodes import ControlNetApplyAdvanced

    positive, negative = given or (host.conditioning(77, 2048, 11), host.conditioning(77, 2048, 12))
    picture = torch.rand(1, 128, 128, 3, generator=torch.Generator().manual_seed(3))
    return ControlNetApplyAdvanced().apply_controlnet(positive, negative, net, picture, strength, *percent)


def sample(model: Any, conditioning: Any, **call: Any) -> Any:
    """As `host.sample`, with positive and negative conditioning."""
    positive, negative = conditioning
    return host.sample(model, positive=positive, negative=negative, **call)
