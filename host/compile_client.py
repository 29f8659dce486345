"""How the compiling process rebuilds ComfyUI's models: the `Client` of the ComfyUI host.

`state()` runs in the server, `prepare` and `wrap` in the worker.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..compiler.fingerprint import Rules
from ..compiler.job import Client
from . import residuals

UNET, VAE_DECODER, VAE_ENCODER, CONTROLNET = "unet", "vae_decoder", "vae_encoder", "controlnet"
_UNET_INPUTS = ("x", "timesteps", "context", "y")
PREFIX = "module."  # under which every wrapper below holds what it wraps


def client() -> Client:
    """The client for compiles started by this ComfyUI, with the command-line options it runs under."""
    import comfy
    from comfy.cli_args import args

    plain = {k: v for k, v in vars(args).items() if isinstance(v, bool | int | float | str | None)}
    return Client(".host.compile_client", {"comfyui": str(Path(next(iter(comfy.__path__))).parent), "args": plain})


@functools.cache
def environment() -> str:
    """The versions around a graph that are no part of its key: a change has it compared with eager again."""
    with contextlib.suppress(ImportError):
        from comfyui_version import __version__ as host

        return f"ComfyUI {host}, torch {torch.__version__}"
    return f"torch {torch.__version__}"


def rules() -> Rules:
    """How ComfyUI's modules are to be read; see `eligibility.rules`. After `prepare`."""
    from . import eligibility

    return eligibility.rules()


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


@contextlib.contextmanager
def _one_path(like: torch.Tensor) -> Iterator[None]:
    """Have the host's attention take one path for inputs of all sizes, as a graph for any size must.

    On CUDA, ComfyUI 0.33 asks how large its inputs are and passes small ones to torch in another way. Both compute the
    same. The host's own runs once, so that the graph's record of functions names it and what it calls.
    """
    import comfy.ops

    own = comfy.ops.scaled_dot_product_attention
    if "nelement" not in getattr(getattr(own, "__code__", None), "co_names", ()):
        yield
        return
    small = like.new_zeros(1, 1, 8, 8)
    own(small, small, small)
    comfy.ops.scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention
    try:
        yield
    finally:
        comfy.ops.scaled_dot_product_attention = own


@contextlib.contextmanager
def _torch_attention() -> Iterator[None]:
    """While this lasts every model attends as `_attention` does: a ControlNet's blocks take no options."""
    from comfy.ldm.modules import attention

    names = ("optimized_attention", "optimized_attention_masked")
    before = {name: getattr(attention, name) for name in names}
    for name in names:
        setattr(attention, name, attention.attention_pytorch)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(attention, name, function)


class UnetCall(torch.nn.Module):
    """UNetModel as a function of tensors: x [B,C,H,W], timesteps [B], context [B,T,D], y [B,A] (SDXL) and the residuals
    of some of its blocks -> [B,C,H,W].

    Args:
        inputs: the names of the tensors that it is called with; none: x, timesteps, context and perhaps y.
    """

    def __init__(self, unet: torch.nn.Module, inputs: Sequence[str] = ()) -> None:
        super().__init__()
        self.module = unet
        self._inputs = tuple(inputs)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        options = {"optimized_attention_override": _attention}
        given, control = residuals.split(self._inputs or _UNET_INPUTS[: len(tensors)], tensors)
        with _one_path(given["x"]):
            result: torch.Tensor = self.module._forward(  # type: ignore[operator]
                **given, control=control, transformer_options=options
            )
        return result


class ControlNetCall(torch.nn.Module):
    """ComfyUI's ControlNet as a function of tensors: x [B,C,H,W], hint [1 or B,C',8H,8W], timesteps [B],
    context [B,T,D], y [B,A] (SDXL) -> its residuals, see `residuals_of`.
    """

    def __init__(self, controlnet: torch.nn.Module, inputs: Sequence[str]) -> None:
        super().__init__()
        self.module = controlnet
        self._inputs = tuple(inputs)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with _torch_attention(), _one_path(tensors[0]):
            return residuals_of(self.module(**dict(zip(self._inputs, tensors, strict=True))))


def residuals_of(control: Mapping[str, Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """A ControlNet's result in one row: the residuals for the skips in their order, then the middle's."""
    (middle,) = control["middle"]
    return (*control["output"], middle)


def encode_moments(module: Any, x: torch.Tensor) -> torch.Tensor:
    """A VAE's encoder up to its regularization, which may draw random numbers: x [B,3,H,W] -> moments [B,2C,H/8,W/8].

    TAESD has no regularization: its latents [B,C,H/8,W/8].
    """
    encoder = getattr(module, "encoder", None)
    if encoder is None:
        latents: torch.Tensor = module.encode(x)
        return latents
    moments: torch.Tensor = encoder(x)
    return module.quant_conv(moments) if hasattr(module, "quant_conv") else moments


def _plain_attention(module: torch.nn.Module) -> None:
    """A VAE's attention blocks carry the host's choice of attention; see `_attention`."""
    from comfy.ldm.modules.diffusionmodules.model import AttnBlock, pytorch_attention

    for block in module.modules():
        if isinstance(block, AttnBlock):
            block.optimized_attention = pytorch_attention


def _unregularized(moments: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """What a regularization gives that changes nothing."""
    return moments, {}


class VaeDecoderCall(torch.nn.Module):
    """A VAE's decode: latents [1,C,h,w] -> image [1,3,8h,8w], before ComfyUI's own scaling and clamping."""

    def __init__(self, vae: torch.nn.Module) -> None:
        super().__init__()
        self.module = vae
        _plain_attention(vae)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with _one_path(x):
            image: torch.Tensor = self.module.decode(x)  # type: ignore[operator]
        return image


class VaeEncoderCall(torch.nn.Module):
    """A VAE's encoder: image [1,3,H,W] -> what `encode_moments` gives."""

    def __init__(self, vae: torch.nn.Module) -> None:
        super().__init__()
        self.module: Any = vae
        _plain_attention(vae)
        regularization: Any = getattr(vae, "regularization", None)
        if regularization is not None:
            regularization.forward = _unregularized

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with _one_path(x):
            # The module's own method, so that the graph's record of functions names it.
            moments: torch.Tensor = self.module.encode(x)
            return moments


def wrap(component: str, module: torch.nn.Module, inputs: Sequence[str] = ()) -> torch.nn.Module:
    """The function of tensors to capture for a component, which takes the inputs of these names."""
    if component in (UNET, CONTROLNET):
        return {UNET: UnetCall, CONTROLNET: ControlNetCall}[component](module, inputs)
    return {VAE_DECODER: VaeDecoderCall, VAE_ENCODER: VaeEncoderCall}[component](module)
