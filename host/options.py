"""ComfyUI's command-line options that concern graphs."""

from __future__ import annotations

import dataclasses

from ..runtime.registry import registry


def follow() -> None:
    """Capture no CUDA graphs where ComfyUI was started with --disable-cuda-graphs, which newer releases have."""
    from comfy.cli_args import args

    if getattr(args, "disable_cuda_graphs", False):
        registry().policy = dataclasses.replace(registry().policy, captures=False)
