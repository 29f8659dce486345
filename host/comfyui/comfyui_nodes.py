"""ComfyUI's module of nodes. Its name is that of a package of this pack, so it is imported here and nowhere else."""

from __future__ import annotations

import importlib
from typing import Any


def comfyui_nodes() -> Any:
    """ComfyUI's top-level module `nodes`: its own node classes, and those of all packs in NODE_CLASS_MAPPINGS."""
    return importlib.import_module("nodes")


def has_node(node_id: str) -> bool:
    """Whether a node of this id is registered by now; packs load one after the other."""
    return node_id in comfyui_nodes().NODE_CLASS_MAPPINGS
