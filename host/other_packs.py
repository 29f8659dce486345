"""Nodes of other custom node packs."""

from __future__ import annotations

from .comfyui_nodes import comfyui_nodes


def has_node(node_id: str) -> bool:
    """Whether a node of this id is registered by now; packs load one after the other."""
    return node_id in comfyui_nodes().NODE_CLASS_MAPPINGS
