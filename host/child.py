"""How the compiling process rebuilds ComfyUI's models: the `Client` of the ComfyUI host.

`state()` runs in the server, `prepare` and `wrap` in the worker.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..compiler.process import Client

UNET = "unet"
PREFIX = "module."  # under which every wrapper below holds what it wraps


def client() -> Client:
    """The client for compiles started by this ComfyUI, with the command-line options it runs under."""
    import comfy
    from comfy.cli_args import args

    plain = {k: v for k, v in vars(args).items() if isinstance(v, bool | int | float | str | None)}
    return Client(".host.child", {"comfyui": str(Path(next(iter(comfy.__path__))).parent), "args": plain})


def prepare(state: Mapping[str, Any]) -> None:
    """Import ComfyUI in the worker under the server's options, without its command line."""
    sys.path.insert(0, state["comfyui"])
    sys.argv = sys.argv[:1]
    import comfy.options

    comfy.options.enable_args_parsing(False)
    from comfy.cli_args import args

    for name, value in state["args"].items():
        setattr(args, name, value)
    import comfy.model_management


def _attention(func: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's scaled_dot_product_attention whatever the host prefers.

    The host's CPU default splits by free memory at trace time, and the extension kernels of other packages cannot
    be compiled; the backend picks its own kernel for this operation.
    """
    from comfy.ldm.modules.attention import attention_pytorch

    return attention_pytorch(*args, **kwargs)


class UnetCall(torch.nn.Module):
    """UNetModel as a function of tensors: x [B,C,H,W], timesteps [B], context [B,T,D], y [B,A] (SDXL) -> [B,C,H,W]."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.module = unet

    def forward(
        self, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor, y: torch.Tensor | None = None
    ) -> torch.Tensor:
        options = {"optimized_attention_override": _attention}
        result: torch.Tensor = self.module._forward(x, timesteps, context, y, None, options)  # type: ignore[operator]
        return result


def wrap(component: str, module: torch.nn.Module) -> torch.nn.Module:
    """The function of tensors to capture for a component."""
    return {UNET: UnetCall}[component](module)
