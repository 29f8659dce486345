"""Nodes of other custom node packs."""

from __future__ import annotations


def has_node(node_id: str) -> bool:
    """Whether a node of this id is registered by now; packs load one after the other."""
    import nodes

    return node_id in nodes.NODE_CLASS_MAPPINGS
