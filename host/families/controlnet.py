"""ComfyUI's ControlNets of SD 1.x, SD 2.x and SDXL.

A ControlNet's residuals are the outputs of its graph. The host scales and sums them, so strength and the part of the
sampling in which it steers are no part of the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.refused import Refused
from ...runtime.calls import latent_ranges
from ...runtime.family import Arguments, Axis, Input, Tensors, by_name
from ..comfyui.contract import Use
from ..comfyui.prompt_size import FIRST, Size
from ..weights.products import products
from .family import FIRST_SIDE, FIRST_TOKENS, HostFamily, one_path, torch_attention

FOLDER = "controlnet"  # of ComfyUI's models, and part of its loaders' input
_HINT = 8  # pixels of the hint for each latent unit


class ControlNet(HostFamily):
    """Inputs: x [B,C,H,W], hint [1 or B,C',8H,8W], timesteps [B], context [B,T,D], for SDXL y [B,A]."""

    component = "controlnet"
    supported = "ControlNets of SD 1.x, SD 2.x and SDXL"
    feature = "ControlNet"
    folders = (FOLDER,)
    arguments = ("x", "hint", "timesteps", "context", "y")
    uses = (Use("comfy.cldm.cldm.ControlNet.forward", arguments),)
    chunk = latent_ranges.MOST_BATCH

    def serves(self, module: torch.nn.Module) -> bool:
        from comfy.cldm.cldm import ControlNet as Module

        return type(module) is Module

    def refusal(self, module: torch.nn.Module) -> Reason | None:
        net: Any = module
        return reasons.UnionControlNet() if net.control_add_embedding is not None else None

    def inputs(self, module: torch.nn.Module, tensors: Tensors) -> Sequence[Input]:
        net: Any = module
        # One picture steers a whole batch in most workflows, and then it is looked at once.
        pictures: int | str = 1 if "hint" in tensors and tensors["hint"].shape[0] == 1 else "batch"
        named = [
            Input("x", ("batch", None, "height", "width")),
            Input("hint", (pictures, None, f"height*{_HINT}", f"width*{_HINT}")),
            Input("timesteps", ("batch",)),
            Input("context", ("batch", "context", None)),
        ]
        return named if net.num_classes is None else [*named, Input("y", ("batch", None))]

    def axes(self, module: torch.nn.Module, tensors: Tensors) -> tuple[Sequence[Axis], str]:
        net: Any = module
        *_, height, width = tensors["x"].shape
        return latent_ranges.any_size(len(net.channel_mult), tensors["x"].device, height, width)

    def read(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors | Refused:
        net: Any = module
        call = by_name(self.arguments, args, kwargs)
        if net.num_classes is None:
            call.pop("y", None)  # which the module does not read
        return super().read(module, (), call)

    def run(self, module: torch.nn.Module, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """The residuals for the skips in their order, then the middle's."""
        control = module(**tensors)
        (middle,) = control["middle"]
        return (*control["output"], middle)

    @contextlib.contextmanager
    def capture_rewrites(self, module: torch.nn.Module, tensors: Tensors) -> Iterator[None]:
        with torch_attention(), one_path(tensors["x"]), products():
            yield

    def example(self, module: torch.nn.Module, like: Any, size: Size = FIRST) -> Arguments:
        net: Any = module
        tensor = {"dtype": net.dtype, "device": like.load_device}
        width = next(m.attn2.to_k.in_features for m in net.modules() if hasattr(m, "attn2"))
        pixels = _HINT * FIRST_SIDE
        kwargs = {
            "x": torch.zeros(2, net.in_channels, FIRST_SIDE, FIRST_SIDE, **tensor),
            "hint": torch.zeros(1, net.input_hint_block[0].in_channels, pixels, pixels, **tensor),
            "timesteps": torch.zeros(2, **tensor),
            "context": torch.zeros(2, FIRST_TOKENS, width, **tensor),
        }
        if net.num_classes is not None:
            kwargs["y"] = torch.zeros(2, net.label_emb[0][0].in_features, **tensor)
        return Arguments((), kwargs)
