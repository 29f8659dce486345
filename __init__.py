"""ComfyUI-OneGraph: compiled UNets that start at once and never change the image.

This file is both the entry point of the custom node pack and the root of the import package
`onegraph`. It imports nothing heavy, so that ComfyUI's start and the command line stay fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comfy_api.latest import ComfyExtension

__version__ = "0.1.0"

WEB_DIRECTORY = "web"

__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]


async def comfy_entrypoint() -> ComfyExtension:
    """What ComfyUI calls to learn the pack's nodes (V3 node API)."""
    from .nodes import OneGraphExtension

    return OneGraphExtension()
