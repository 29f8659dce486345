"""Regions of a captured graph as bytes: how they travel from the main worker of a compile to the others.

Weights stay behind, shapes keep their symbols. The bytes are a pickle and go from a process to its own children only.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch.fx import GraphModule

from ...common.tensor_meta import TensorMeta
from ...common.torch_private import require
from ...common.zeros import zeros


def dump(module: GraphModule) -> bytes:
    """Write a region whose placeholders carry the fake tensors of the export. Nothing else may use it meanwhile.

    Raises:
        LoadError: this torch cannot write graphs with symbolic shapes.
    """
    weights = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    described = [(TensorMeta.of(name, weight), _is_parameter(weight)) for name, weight in weights.items()]
    bare = copy.copy(module)
    vars(bare).update(_parameters={}, _buffers={})  # of its own: the copy shares the module's
    metas = {node: node.meta for node in module.graph.nodes}
    placeholders = module.graph.find_nodes(op="placeholder")
    (mode,) = {node.meta["val"].fake_mode for node in placeholders}
    try:
        for node in metas:
            node.meta = {}
        for node in placeholders:
            node.meta = {"val": _no_view(metas[node]["val"], mode)}
        return pickle.dumps((described, mode.allow_non_fake_inputs, _pickler().dumps(bare)))
    finally:
        for node, meta in metas.items():
            node.meta = meta
        module.graph = module.graph  # which believes to be the copy's


def load(data: bytes, device: torch.device) -> GraphModule:
    """Read a region, with zeros for weights, which are to be read only: on a GPU they share memory.

    Raises:
        LoadError: this torch cannot read graphs with symbolic shapes.
    """
    described, allow_non_fake_inputs, graph = pickle.loads(data)
    mode = require("torch._subclasses.fake_tensor.FakeTensorMode")(
        shape_env=require("torch.fx.experimental.symbolic_shapes.ShapeEnv")(),
        allow_non_fake_inputs=allow_non_fake_inputs,
    )
    module: Any = _pickler().loads(graph, mode)
    made = zeros([meta for meta, _ in described], device)
    for meta, is_parameter in described:
        weight = made[meta.name]
        if is_parameter:
            module.register_parameter(meta.name, torch.nn.Parameter(weight, requires_grad=False))
        else:
            module.register_buffer(meta.name, weight)
    assert isinstance(module, GraphModule)
    return module


def _no_view(tensor: torch.Tensor, mode: Any) -> torch.Tensor:
    """The same as a tensor of its own: torch cannot write views of views."""
    with torch.no_grad(), mode:
        base = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return base.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _is_parameter(weight: torch.Tensor) -> bool:
    return isinstance(weight, torch.nn.Parameter)


def _pickler() -> Any:
    return require("torch.fx._graph_pickler.GraphPickler")
