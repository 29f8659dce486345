"""ComfyUI's UNetModel for videos: Stable Video Diffusion, whose frames are computed together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...common import reasons
from ...common.refused import Refused
from ...common.tensor_meta import dtype_name
from ...runtime.calls import latent_ranges
from ...runtime.family import Arguments, Axis, Input, Tensors, by_name, plain
from ..comfyui.contract import Use, uses
from ..comfyui.prompt_size import FIRST, Size
from .family import FIRST_SIDE
from .unet import MODULE, Unet, is_video, options_refusal

_FRAMES = Axis("frames", 2, 32, text="{} frames")
_USUAL_FRAMES = 14
_TENSORS = ("x", "timesteps", "context", "y")


class VideoUnet(Unet):
    """Inputs: x [1,F,C,H,W], timesteps [1,F], context [1,F,T,D], y [1,F,A]. One video at a time.

    The host gives all frames of all videos in one batch, those of one video beside each other.
    """

    supported = "Stable Video Diffusion"
    uses = (
        Use(f"{MODULE}.UNetModel._forward", Unet.arguments),
        *uses(MODULE, "VideoResBlock"),
        Use("comfy.ldm.modules.attention.SpatialVideoTransformer"),
    )
    chunk = 1

    def serves(self, module: torch.nn.Module) -> bool:
        return is_video(module)

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        dtype = dtype_name(tensors["x"].dtype)
        return (
            Input("x", (1, "frames", None, "height", "width")),
            Input("timesteps", (1, "frames"), dtype="float32"),
            Input("context", (1, "frames", None, None), dtype=dtype),
            Input("y", (1, "frames", None), dtype=dtype, optional=True),
        )

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        unet: Any = module
        *_, height, width = tensors["x"].shape
        axes, label = latent_ranges.any_size(len(unet.channel_mult), tensors["x"].device, height, width)
        return [_FRAMES, *(axis for axis in axes if axis.pixels)], f"{label}, up to {_FRAMES.high} frames"

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        call = by_name(self.arguments, args, kwargs)  # and what the host gives by name alone
        for name, value in call.items():
            if name not in (*_TENSORS, "transformer_options", "num_video_frames") and value is not None:
                return Refused(self.foreign_argument(name))
        refusal = options_refusal(call.get("transformer_options") or {})
        if refusal is not None:
            return Refused(refusal)
        tensors = {name: call[name] for name in _TENSORS if call.get(name) is not None}
        if not {"x", "timesteps", "context"} <= tensors.keys() or plain([*tensors.values()]) is None:
            return Refused(reasons.NotPlainInputs())
        frames, batch = call.get("num_video_frames"), tensors["x"].shape[0]
        if type(frames) is not int or frames < 1 or batch % frames:
            return Refused(reasons.UnusualInputs())
        dims = {"x": 4, "timesteps": 1, "context": 3, "y": 2}
        if any(one.ndim != dims[name] or one.shape[0] != batch for name, one in tensors.items()):
            return Refused(reasons.UnusualInputs())
        return {name: one.unflatten(0, (-1, frames)) for name, one in tensors.items()}

    def run(self, module: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        unet: Any = module
        together = {name: one.flatten(0, 1) for name, one in tensors.items()}
        frames, options = tensors["x"].shape[1], {**self.options}
        result: torch.Tensor = unet._forward(**together, transformer_options=options, num_video_frames=frames)
        return result

    @contextlib.contextmanager
    def capture_rewrites(self, module: torch.nn.Module, tensors: Tensors) -> Iterator[None]:
        with super().capture_rewrites(module, tensors), _OneVideo():
            yield

    def example(self, module: torch.nn.Module, like: Any, size: Size = FIRST) -> Arguments:
        unet: Any = module
        config = like.model.model_config.unet_config
        tensor = {"dtype": like.model.get_dtype_inference(), "device": like.load_device}
        batch = 2 * _USUAL_FRAMES
        kwargs = {
            "x": torch.zeros(batch, unet.in_channels, FIRST_SIDE, FIRST_SIDE, **tensor),
            "timesteps": torch.zeros(batch, device=like.load_device),
            "context": torch.zeros(batch, 1, config["context_dim"], **tensor),
        }
        if unet.num_classes is not None:
            kwargs["y"] = torch.zeros(batch, config["adm_in_channels"], **tensor)
        return Arguments((), {**kwargs, "num_video_frames": _USUAL_FRAMES})

    def examples(self, module: torch.nn.Module, like: Any, dynprompt: Any) -> Sequence[Arguments]:
        return [self.example(module, like)]


class _OneVideo(TorchFunctionMode):
    """While it lasts, every n-th frame is the first one: a capture knows no steps whose length is a size.

    The host takes what belongs to a video from its first frame, and a graph is given the frames of one video.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and isinstance(args[1], slice) and isinstance(args[1].step, torch.SymInt):
            return func(args[0], slice(0, 1))
        return func(*args, **(kwargs or {}))
