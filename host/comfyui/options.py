"""What a user chooses: on a node for a model or a ControlNet, and on ComfyUI's command line for all graphs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ...runtime.family import Shapes
from ...runtime.obtain.registry import registry
from ...runtime.request import WhenMissing


@dataclass(frozen=True)
class ModelNodeOptions:
    """The choices of the node."""

    backend: str = "auto"
    shapes: Shapes = "any size"
    when_missing: WhenMissing = "wait"


def follow() -> None:
    """Capture no CUDA graphs where ComfyUI was started with --disable-cuda-graphs, which newer releases have."""
    from comfy.cli_args import args

    if getattr(args, "disable_cuda_graphs", False):
        registry().policy = dataclasses.replace(registry().policy, captures=False)
