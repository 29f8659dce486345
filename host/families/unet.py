"""ComfyUI's UNetModel: SD 1.x, SD 2.x, SDXL and its refiner."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.tensor_meta import dtype_name
from ...runtime.calls import latent_ranges
from ...runtime.family import Arguments, Axis, Input, Tensors, by_name, plain
from ..comfyui import model_source
from ..comfyui.contract import Use, uses
from ..comfyui.prompt_size import FIRST, Size, prompt_size
from ..weights.products import products
from . import residuals
from .family import FIRST_TOKENS, PIXELS, HostFamily, attention, of_steps, one_path

MODULE = "comfy.ldm.modules.diffusionmodules.openaimodel"

# transformer_options that do not change what the UNet computes. A capture shows which options decide what a block does,
# but not for a UNet: its transformers go through all of them (`BasicTransformerBlock.forward` copies each for patches).
_NEUTRAL = {
    "wrappers",
    "callbacks",
    "cond_or_uncond",
    "uuids",
    "sigmas",
    "sample_sigmas",
    "prefetch_dynamic_vbars",
    "multigpu_thread_device",
    "original_shape",
    "transformer_index",
    "block",
    "easycache",  # EasyCache's and LazyCache's memory of earlier steps: they skip calls and change none
    "context_window",  # which part of the batch or size a call is about
}


class Unet(HostFamily):
    """Inputs: x [B,C,H,W], timesteps [B], context [B,T,D], for SDXL y [B,A], and residuals of some of its blocks."""

    component = "unet"
    supported = "SD 1.x, SD 2.x, SDXL, refiner"
    entry = "_forward"
    arguments = ("x", "timesteps", "context", "y", "control", "transformer_options")
    uses = (
        Use(f"{MODULE}.UNetModel._forward", arguments),
        *uses(MODULE, "VideoResBlock", "Downsample"),
        Use("comfy.ldm.modules.attention.SpatialVideoTransformer"),
    )
    chunk = latent_ranges.MOST_BATCH

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}  # the model's, while it is captured

    def serves(self, module: torch.nn.Module) -> bool:
        from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

        return type(module) is UNetModel and not is_video(module)

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        dtype = dtype_name(tensors["x"].dtype)
        return [
            Input("x", ("batch", None, "height", "width")),
            Input("timesteps", ("batch",), dtype="float32"),
            Input("context", ("batch", "context", None), dtype=dtype),
            Input("y", ("batch", None), dtype=dtype, optional=True),
            *residuals.inputs(module, tensors),
        ]

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        unet: Any = module
        *_, height, width = tensors["x"].shape
        axes, label = latent_ranges.any_size(len(unet.channel_mult), tensors["x"].device, height, width)
        return axes, f"{label} with residuals" if residuals.among(tensors) else label

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        call = by_name(self.arguments, args, kwargs)
        if call.get("num_video_frames") is not None:
            return Refused(reasons.VideoFrames())
        for name, value in call.items():
            if name not in self.arguments and value is not None:
                return Refused(self.foreign_argument(name))
        refusal = options_refusal(call.get("transformer_options") or {})
        if refusal is not None:
            return Refused(refusal)
        tensors = of_steps(call)
        if not {"x", "timesteps", "context"} <= tensors.keys() or plain([*tensors.values()]) is None:
            return Refused(reasons.NotPlainInputs())
        if tensors["x"].ndim != 4 or tensors["context"].ndim != 3 or ("y" in tensors and tensors["y"].ndim != 2):
            return Refused(reasons.UnusualInputs())
        steering = residuals.taken(module, call.get("control"), tensors["x"])
        return steering if isinstance(steering, Refused) else {**tensors, **steering}

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        unet: Any = module
        plain_inputs, control = residuals.split(tensors)
        result: torch.Tensor = unet._forward(**plain_inputs, control=control, transformer_options={**self.options})
        return result

    @contextlib.contextmanager
    def capture_rewrites(self, module: torch.nn.Module, tensors: Tensors) -> Iterator[None]:
        self.options = {"optimized_attention_override": attention}
        try:
            with one_path(tensors["x"]), products():
                yield
        finally:
            self.options = {}

    def example(self, module: torch.nn.Module, like: Any, size: Size = FIRST) -> Arguments:
        unet: Any = module
        config = like.model.model_config.unet_config
        tensor = {"dtype": like.model.get_dtype_inference(), "device": like.load_device}
        batch = 2 * size.images  # with a prompt and without, at once
        kwargs = {
            "x": torch.zeros(batch, unet.in_channels, size.height // PIXELS, size.width // PIXELS, **tensor),
            "timesteps": torch.zeros(batch, device=like.load_device),
            "context": torch.zeros(batch, FIRST_TOKENS, config["context_dim"], **tensor),
        }
        if unet.num_classes is not None:
            kwargs["y"] = torch.zeros(batch, config["adm_in_channels"], **tensor)
        return Arguments((), kwargs)

    def examples(self, module: torch.nn.Module, like: Any, dynprompt: Any) -> Sequence[Arguments]:
        plain_call = self.example(module, like, prompt_size(dynprompt))
        if dynprompt is None or not model_source.has_controlnet(dynprompt):
            return [plain_call]
        steering = residuals.usual(module, plain_call.kwargs["x"])
        return [plain_call, Arguments((), {**plain_call.kwargs, "control": residuals.control_of(steering)})]


_videos: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def is_video(module: torch.nn.Module) -> bool:
    """Whether this is a UNet that computes the frames of a video together, as it was when it was first asked about.

    Each call asks. A UNet whose blocks are exchanged later has another architecture, so no graph of either kind.
    """
    from comfy.ldm.modules.attention import SpatialVideoTransformer
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel, VideoResBlock

    if type(module) is not UNetModel:
        return False
    cached = _videos.get(module)
    if cached is None:
        blocks = VideoResBlock | SpatialVideoTransformer
        cached = _videos[module] = any(isinstance(child, blocks) for child in module.modules())
    return cached


def options_refusal(options: Mapping[str, Any]) -> Reason | None:
    """Why transformer_options ask for something no graph does, or None."""
    for key, value in options.items():
        if key in _NEUTRAL:
            continue
        if key == "patches":
            patched = {name: patches for name, patches in value.items() if patches}
            if patched:
                name, patches = next(iter(patched.items()))
                return reasons.PatchedBy(_patch_name(patches[0]), str(name))
        elif key == "patches_replace":
            replaced = {name: patches for name, patches in value.items() if patches}
            if replaced:
                name, by_block = next(iter(replaced.items()))
                return reasons.ReplacedBy(_patch_name(next(iter(by_block.values()))), str(name))
        elif value is not None and value != {} and value != []:
            return reasons.ModelOption(str(key))
    return None


def _patch_name(function: Any) -> str:
    """The name a user knows a patch by: its outermost class or function, e.g. FreeU_V2."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return str(name).partition(".")[0]
