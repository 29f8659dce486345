"""ComfyUI's module of nodes. Its name is that of a package of this pack, so it is imported here and nowhere else."""

from __future__ import annotations

from typing import Any


def comfyui_nodes() -> Any:
    """ComfyUI's top-level module `nodes`: its own node classes, and those of all packs in NODE_CLASS_MAPPINGS."""
    import nodes as module

    return module
