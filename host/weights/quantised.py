"""Reading quantised weights, the host's and ComfyUI-GGUF's: the plain tensors of each, and all else that compiled code
depends on."""

from __future__ import annotations

import dataclasses
import functools
from importlib import metadata
from typing import Any

import torch

from ...common.torch_private import tables
from ...compiler.composite_weights import Composites, Made, WeightParts, class_name
from ...compiler.layer_swap import ExactLinear, in_float32
from ...runtime.guards.code_guard import is_defined_in
from ..comfyui import contract, sampled_by
from . import ggml

_LOCAL = "comfy.ops:mixed_precision_ops.<locals>.MixedPrecisionOps"
LINEAR = f"{_LOCAL}.Linear"
_CLASSES = frozenset({_LOCAL, LINEAR, f"{_LOCAL}.Embedding", f"{_LOCAL}.MoEExperts"})


def composites() -> Composites:
    """Tell how quantised weights are read. The host's are those of comfy-kitchen, which ComfyUI may be without."""
    return Composites(parts, _made_by, exact_block, _CLASSES | ggml.classes(), sampled_by.stand_in)


def is_quantised(weight: Any) -> bool:
    """Tell whether a weight is one of the host's quantised tensors."""
    cls = _tensor_class()
    return cls is not None and isinstance(weight, cls)


@functools.cache
def _tensor_class() -> type[torch.Tensor] | None:
    """comfy-kitchen's class; None where it is not installed, or this ComfyUI has other ways to quantise."""
    if contract.missing(contract.QUANTISED):
        return None
    from comfy.quant_ops import QuantizedTensor

    return QuantizedTensor if issubclass(QuantizedTensor, torch.Tensor) else None


def parts(weight: torch.Tensor) -> WeightParts | None:
    """Return the tensors of a quantised weight: its values, and what they are scaled by."""
    if not is_quantised(weight):
        return ggml.parts(weight)
    quantised: Any = weight
    tensors: dict[str, torch.Tensor] = {"_qdata": quantised._qdata}
    facts: list[Any] = [quantised._layout_cls, class_name(quantised.layout_cls), _kitchen()]
    for field in dataclasses.fields(quantised._params):
        value = getattr(quantised._params, field.name)
        if isinstance(value, torch.Tensor):
            tensors[f"_params.{field.name}"] = value
        else:
            facts.append((field.name, tuple(value) if isinstance(value, torch.Size) else value))
    return WeightParts(tensors, tuple(facts))


def tensors_of_weight(weight: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors that a weight consists of: itself, unless it is quantised."""
    weight_parts = parts(weight)
    return [weight] if weight_parts is None else [*weight_parts.tensors.values()]


def metadata_of(weight: torch.Tensor) -> tuple[Any, ...] | None:
    """Everything about a quantised weight but its values; None: it is none."""
    weight_parts = parts(weight)
    return None if weight_parts is None else weight_parts.metadata()


def without_values(weight: torch.Tensor, computed: torch.dtype | None = None) -> torch.Tensor | None:
    """Return a quantised weight like another, on the meta device; None: it is none.

    Args:
        computed: dtype of weights that are computed at each use.
    """
    arguments = _arguments(weight)
    if arguments is None:
        return ggml.without_values(weight, computed)
    values, layout, params = arguments
    fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    empty = {name: _meta(one) for name, one in fields.items() if isinstance(one, torch.Tensor)}
    made: torch.Tensor = type(weight)(_meta(values), layout, dataclasses.replace(params, **empty))
    return made


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def exact_block(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a block in float32 with dequantised weights: what eager and a graph are both rounded from.

    Weights that are not float32 already are copied.
    """
    return in_float32(module, _exact_layer)


def _exact_layer(module: torch.nn.Module) -> torch.nn.Module | None:
    if ggml.is_served(module):
        return ggml.exact_layer(module)
    return ExactLinear(module, _dequantised) if is_quantised(tables(module).parameters.get("weight")) else None


def _dequantised(weight: Any) -> torch.Tensor:
    dequantised: torch.Tensor = weight.to(dtype=torch.float32).dequantize()
    return dequantised


def computes_as_usual(weight: Any) -> bool:
    """Tell whether products with a weight are comfy-kitchen's own; others may register theirs."""
    from comfy_kitchen.tensor import base

    handlers = base._LAYOUT_DISPATCH_TABLE.get(torch.ops.aten.linear.default, {})
    handler = next((handlers[cls] for cls in weight.layout_cls.__mro__ if cls in handlers), None)
    usual_layout = weight.layout_cls.__module__.partition(".")[0] in ("comfy", "comfy_kitchen")
    return usual_layout and handler is not None and is_defined_in(handler, "comfy_kitchen")


def products_in_place() -> list[Any]:
    """Return the functions that products with quantised weights call now, and their code."""
    if _tensor_class() is None:
        return []
    from comfy_kitchen.tensor import base

    handlers = base._LAYOUT_DISPATCH_TABLE.get(torch.ops.aten.linear.default, {})
    return [*handlers, *handlers.values(), *(getattr(one, "__code__", None) for one in handlers.values())]


def _arguments(weight: torch.Tensor) -> tuple[Any, ...] | None:
    quantised: Any = weight
    return (quantised._qdata, quantised._layout_cls, quantised._params) if is_quantised(weight) else None


def _made_by(weight: torch.Tensor) -> Made | None:
    arguments = _arguments(weight)
    return ggml.made(weight) if arguments is None else (type(weight), arguments)


@functools.cache
def _kitchen() -> str:
    """The version of the library whose operations compute with such weights."""
    try:
        return f"comfy-kitchen {metadata.version('comfy-kitchen')}"
    except metadata.PackageNotFoundError:
        return "comfy-kitchen"


@functools.cache
def _made() -> Any:
    import comfy.ops

    return comfy.ops.mixed_precision_ops({}, torch.bfloat16)


def class_of(name: str) -> type:
    """One of the host's classes of layers that stand in a function, made again, or a pack's. In the compiling process.

    Raises:
        ValueError: it is none of them.
    """
    pack_class = ggml.class_of(name)
    if pack_class is not None:
        return pack_class
    if name not in _CLASSES:
        raise ValueError(f"no class of ComfyUI's layers: {name}")
    layer_class = _made() if name == _LOCAL else getattr(_made(), name.rpartition(".")[2])
    assert isinstance(layer_class, type)
    return layer_class
