"""What of an exported graph computes, without its checks and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node


@dataclass(frozen=True)
class GraphBody:
    """Tensor operations in order, between inputs and results."""

    inputs: tuple[Node, ...]
    weights: dict[Node, str]
    tensors: dict[str, torch.Tensor]  # the weights by name
    nodes: tuple[Node, ...]
    results: tuple[Node, ...]

    @classmethod
    def of(cls, exported: torch.export.ExportedProgram) -> GraphBody | None:
        """Return None for graphs with anything unusual in them."""
        signature = exported.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        inputs, weights, nodes = [], {}, []
        for node in exported.graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder":
                if node.name in names:
                    weights[node] = names[node.name]
                elif isinstance(value, torch.Tensor):
                    inputs.append(node)
                else:
                    return None
            elif node.op == "call_function" and not _is_check(node) and not is_size(node):
                nodes.append(node)
            elif node.op not in ("call_function", "output"):
                return None
        results = tuple(exported.graph.output_node().args[0])
        if not set(results) <= set(nodes):
            return None
        tensors = {**dict(exported.named_buffers()), **exported.state_dict}
        return cls(tuple(inputs), weights, tensors, tuple(nodes), results)


def _is_check(node: Node) -> bool:
    """A runtime assertion; what it asserts, the shape range already has."""
    return not node.users and node.meta.get("val") is None


def is_size(node: Node) -> bool:
    """Tell whether an operation computes a number, not a tensor."""
    return isinstance(node.meta.get("val"), torch.SymInt | int | torch.SymFloat | float | torch.SymBool | bool)


def signature(node: Node) -> str:
    """Describe an operation without its operands: what to compute and the layout of the result."""
    return f"{node.target} {layout(node.meta.get('val'))}"


def layout(value: Any) -> str:
    """Describe a value by dtype, shape, strides and device; lists of them one by one."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device}"
    return str([layout(v) for v in value]) if isinstance(value, list | tuple) else str(value)
