"""Weights of quantising libraries: those whose own code a graph is captured from, and others', which run eager."""

from __future__ import annotations

import torch

from ..common import reasons
from ..common.reasons import Reason
from ..common.torch_private import tables
from ..compiler.composite_weights import PLAIN, Composites, Made, WeightParts
from ..compiler.layer_swap import ExactLinear, in_float32, with_layers
from .weight_formats import FORMATS, LibraryFormat


def composites() -> Composites:
    """How these weights are read."""
    return Composites(parts, _made, exact_block)


def parts(weight: torch.Tensor) -> WeightParts | None:
    """What a weight of a library that is served consists of, and all else that compiled code depends on."""
    return next((weight_parts for one in FORMATS if (weight_parts := one.parts(weight)) is not None), None)


def _format_of(weight: torch.Tensor) -> LibraryFormat | None:
    return next((one for one in FORMATS if one.parts(weight) is not None), None)


def _made(weight: torch.Tensor) -> Made | None:
    weight_format = _format_of(weight)
    return None if weight_format is None else (type(weight), weight_format.arguments(weight))


def _served(layer: torch.nn.Module) -> LibraryFormat | None:
    """The format of a layer's weight, where a graph computes what the layer does."""
    weight = tables(layer).parameters.get("weight")
    weight_format = None if weight is None or type(weight) in PLAIN else _format_of(weight)
    return weight_format if weight_format is not None and weight_format.serves(layer) else None


def plain_block(block: torch.nn.Module) -> torch.nn.Module:
    """A copy of a block whose quantised layers read plain tensors. In the compiling process."""

    def remade(layer: torch.nn.Module) -> torch.nn.Module | None:
        weight_format = _served(layer)
        return None if weight_format is None else weight_format.remade(layer)

    return with_layers(block, remade)


def exact_block(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a block in float32 whose weights are dequantised: what eager and a graph are both rounded from."""

    def exact(layer: torch.nn.Module) -> torch.nn.Module | None:
        weight_format = _served(layer)
        return None if weight_format is None else ExactLinear(layer, weight_format.dequantised)

    return in_float32(module, exact)


def refusal(layer: torch.nn.Module, name: str) -> Reason | None:
    """Why no graph of a block reads the weights of a layer itself, or None."""
    quantised = _not_plain(layer)
    if any(_format_of(weight) is None for weight in quantised):
        return foreign(layer, name)
    if quantised and (
        _served(layer) is None or len(quantised) > 1 or set(tables(layer).parameters) - {"weight", "bias"}
    ):
        return reasons.QuantisedLayer(_where(layer, name))
    return None


def foreign(layer: torch.nn.Module, name: str) -> Reason | None:
    """Why no graph of a whole model reads the weights of a layer itself, or None: of any library's."""
    for weight in _not_plain(layer):
        cls = type(weight)
        return reasons.LibraryWeight(cls.__name__, cls.__module__.partition(".")[0], _where(layer, name))
    return None


def _not_plain(layer: torch.nn.Module) -> list[torch.Tensor]:
    return [one for one in tables(layer).parameters.values() if one is not None and type(one) not in PLAIN]


def _where(layer: torch.nn.Module, name: str) -> str:
    return f"{name or 'a layer'} ({type(layer).__name__})"
