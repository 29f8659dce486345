"""A small ControlNet with seeded weights that ComfyUI's own ControlNetLoader takes."""

from __future__ import annotations

from pathlib import Path

from . import models


def write_controlnet(name: str, path: Path, seed: int = 5) -> Path:
    """Write a ControlNet for one of the small models; strong enough to change the image. Needs a booted host."""
    import comfy.cldm.cldm
    import comfy.ops
    from safetensors.torch import save_file

    config = {**models._COMMON, **models.config(name)}
    for unknown in ("out_channels", "transformer_depth_output"):
        config.pop(unknown)
    net = comfy.cldm.cldm.ControlNet(**config, hint_channels=3, device="meta", operations=comfy.ops.disable_weight_init)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(models.seeded(net.state_dict(), seed), path)
    return path
