"""Modules with plain weights in place of quantised ones, and why one has none that a graph could read."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

import torch

from ...common import reasons
from ...common.code_digest import nested
from ...common.errors import CaptureError
from ...common.reasons import Reason
from ...common.torch_private import tables
from ...compiler.composite_weights import PLAIN, class_name
from ...compiler.layer_swap import with_layers
from ...runtime.guards.code_guard import custom_node
from . import ggml
from .formats import FORMATS
from .quantised import LINEAR, computes_as_usual, is_quantised, products_in_place

_METHODS = ("forward", "forward_comfy_cast_weights", "_forward")


def plain_block(block: torch.nn.Module) -> torch.nn.Module:
    """Copy a block with plain layers for its quantised ones; it shares everything else. In the compiling process.

    Raises:
        CaptureError: a layer is of a format that no graph serves.
    """
    return with_layers(block, _plain_layer)


def plain(module: torch.nn.Module) -> torch.nn.Module:
    """As `plain_block`; a module without quantised weights as it is."""
    quantised = any(_has_quantised(one) or ggml.is_served(one) for one in module.modules())
    return plain_block(module) if quantised else module


def _plain_layer(module: torch.nn.Module) -> torch.nn.Module | None:
    if ggml.is_served(module):
        refused = ggml.refusal(module, _where(module, ""), brought=False)
        if refused is not None:
            raise CaptureError(f"{refused.text}; it runs uncompiled.")
        return ggml.DequantisingLinear(module)
    if not _has_quantised(module):
        return None
    refused = _layer_refusal(module, "")
    if refused is not None:
        raise CaptureError(f"{refused.text}; it runs uncompiled.")
    return FORMATS[_format_of(module)].plain(module)


def refusal(block: torch.nn.Module, brought: bool = False) -> Reason | None:
    """Say why no graph computes with the quantised weights of a block as they are now, or None.

    Args:
        brought: whether weights that are computed at each use are so before each call of the block.
    """
    for name, module in block.named_modules():
        if _has_quantised(module):
            reason = _layer_refusal(module, name)
        else:
            reason = _library_refusal(module, name, brought)
        if reason is not None:
            return reason
    return None


def surroundings(classes: Iterable[type]) -> tuple[int, ...]:
    """Numbers for what `refusal` depends on besides a block: its layers' classes, and the code of products."""
    codes = [getattr(vars(cls).get(name), "__code__", None) for cls in classes for name in _METHODS]
    return tuple(map(id, (*codes, *(value for cls in classes for value in ggml.options(cls)), *products_in_place())))


def _library_refusal(layer: torch.nn.Module, name: str, brought: bool) -> Reason | None:
    """Why no graph reads the weights of a layer itself, where they are of another pack's classes, or None."""
    if ggml.is_served(layer):
        return ggml.refusal(layer, _where(layer, name), brought)
    for weight in tables(layer).parameters.values():
        if weight is not None and type(weight) not in PLAIN:
            cls = type(weight)
            methods = [one for one in vars(cls).values() if isinstance(one, FunctionType)]
            library = next(filter(None, map(custom_node, methods)), cls.__module__.partition(".")[0])
            return reasons.LibraryWeight(cls.__name__, library, _where(layer, name))
    return None


def _has_quantised(module: torch.nn.Module) -> bool:
    return any(is_quantised(one) for table in tables(module)[:2] for one in table.values())


def _format_of(layer: Any) -> str:
    return str(getattr(layer, "quant_format", None))


def _where(layer: torch.nn.Module, name: str) -> str:
    return f"{name or 'a layer'} ({type(layer).__name__})"


def _layer_refusal(layer: Any, name: str) -> Reason | None:
    where = _where(layer, name)
    if class_name(type(layer)) != LINEAR:
        return reasons.QuantisedLayer(where)
    if not _is_hosts(type(layer)):
        return reasons.ReplacedPart("class", where)
    served = FORMATS.get(_format_of(layer))
    if served is None or not is_quantised(layer.weight) or not served.serves(layer):
        return reasons.WeightFormat(_format_of(layer), where)
    if not computes_as_usual(layer.weight):
        return reasons.ReplacedPart("product of weights", where)
    if getattr(layer, "comfy_force_cast_weights", False):
        return reasons.WeightCast(where)
    return None


def _is_hosts(cls: type) -> bool:
    """Whether a class of layers computes by the host's own functions."""
    import comfy.ops

    host_codes = set(nested(comfy.ops.mixed_precision_ops.__code__))
    return all(getattr(vars(cls).get(name), "__code__", None) in host_codes for name in _METHODS)
