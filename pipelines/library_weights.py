"""Weights of quantising libraries: torchao's, whose own code a graph is captured from, and others', which run eager.

A weight of torchao's is a tensor that holds plain ones and computes with them in Python. In the compiling process a
layer makes such a weight again of the plain tensors that the graph reads, so that the product is torchao's.
"""

from __future__ import annotations

import functools
import sys
from importlib import metadata
from typing import Any

import torch

from ..common import reasons
from ..common.reasons import Reason
from ..common.torch_private import tables
from ..compiler.composite import PLAIN, Composites, WeightParts, class_name
from ..compiler.exchange import ExactLinear, Parts, in_float32, with_layers

_TORCHAO = "torchao"
_NAMES = (  # in the order of such a class's arguments
    "tensor_data_names",
    "tensor_attribute_names",
    "optional_tensor_data_names",
    "optional_tensor_attribute_names",
)
_LINEAR = torch.nn.Linear


def composites() -> Composites:
    """How torchao's weights are read."""
    return Composites(parts, _arguments, exact_block)


def _is_torchaos(weight: Any) -> bool:
    """Whether a weight is of a class of torchao's that is made of plain tensors."""
    module = sys.modules.get(f"{_TORCHAO}.utils")  # nobody has such a weight before torchao is imported
    base = getattr(module, "TorchAOBaseTensor", None)
    if base is None or not isinstance(weight, base) or type(weight).__module__.partition(".")[0] != _TORCHAO:
        return False
    return all(hasattr(type(weight), name) for name in _NAMES[:2]) and all(
        type(getattr(weight, name)) in PLAIN for name in _tensors_of(weight)
    )


def _tensors_of(weight: Any) -> list[str]:
    names: list[str] = weight.__tensor_flatten__()[0]
    return names


def parts(weight: torch.Tensor) -> WeightParts | None:
    """The tensors of a weight of torchao's, and its attributes: sizes of blocks, dtypes, how an input is quantised."""
    if not _is_torchaos(weight):
        return None
    facts: list[Any] = [class_name(type(weight)), _version()]
    facts += [(name, repr(value)) for name, value in weight.__tensor_flatten__()[1].items()]  # type: ignore[attr-defined]
    if any(" at 0x" in fact[1] for fact in facts[2:]):  # no stable text
        return None
    return WeightParts({name: getattr(weight, name) for name in _tensors_of(weight)}, tuple(facts))


def _arguments(weight: torch.Tensor) -> tuple[Any, ...] | None:
    if parts(weight) is None:
        return None
    return tuple(getattr(weight, name) for names in _NAMES for name in getattr(type(weight), names, ()))


@functools.cache
def _version() -> str:
    try:
        return f"{_TORCHAO} {metadata.version(_TORCHAO)}"
    except metadata.PackageNotFoundError:
        return _TORCHAO


class RemadeLinear(torch.nn.Module):
    """A Linear that makes its weight of plain tensors at each use. In the compiling process."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight, found = layer.weight, parts(layer.weight)
        assert found is not None
        self.weight: Any = Parts(found.tensors)
        self.bias = layer.bias
        # Of single values: others have theirs, and to ask for it would be to read a tensor that no product needs.
        self._shapes = {name: one.shape if one.numel() == 1 else None for name, one in found.tensors.items()}
        self._made = type(weight), weight.__tensor_flatten__()[1], weight.shape, weight.stride()
        self.train(layer.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cls, attributes, shape, stride = self._made
        read = ((name, getattr(self.weight, name), size) for name, size in self._shapes.items())
        tensors = {name: tensor if size is None else tensor.reshape(size) for name, tensor, size in read}
        weight = cls.__tensor_unflatten__(tensors, attributes, shape, stride)
        return torch.nn.functional.linear(x, weight, self.bias)


def plain_block(block: torch.nn.Module) -> torch.nn.Module:
    """A copy of a block whose quantised layers read plain tensors. In the compiling process."""
    return with_layers(block, lambda layer: RemadeLinear(layer) if _has_torchaos(layer) else None)


def exact_block(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a block in float32 whose weights are dequantised: what eager and a graph are both rounded from."""
    return in_float32(module, lambda layer: ExactLinear(layer, _dequantised) if _has_torchaos(layer) else None)


def _has_torchaos(layer: torch.nn.Module) -> bool:
    return type(layer) is _LINEAR and _is_torchaos(layer.weight)


def _dequantised(weight: Any) -> torch.Tensor:
    found: torch.Tensor = weight.dequantize()
    return found.float()


def has_any(module: torch.nn.Module) -> bool:
    """Whether a module has weights of any library's own classes."""
    return any(map(_not_plain, module.modules()))


def refusal(layer: torch.nn.Module, name: str) -> Reason | None:
    """Why no graph of a block reads the weights of a layer itself, or None."""
    for weight in _not_plain(layer):
        if not _is_torchaos(weight):
            return foreign(layer, name)
        if type(layer) is not _LINEAR or set(tables(layer).parameters) - {"weight", "bias"}:
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
