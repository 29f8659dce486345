"""Copies of modules with other layers in the place of those whose weights are composite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..common.torch_private import Tables, set_tables, tables
from .composite_weights import as_read

_ROWS = 1024  # of a weight in float32: 12 MiB where it has 3072 columns

LayerOf = Callable[[torch.nn.Module], "torch.nn.Module | None"]  # what stands for a module; None: a copy of it does


class ComponentTensors(torch.nn.Module):
    """The tensors of a composite weight, as buffers by the attribute paths that they have in the weight."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        for path, tensor in tensors.items():
            owner: torch.nn.Module = self
            *outer, name = path.split(".")
            for one in outer:
                if not hasattr(owner, one):
                    owner.add_module(one, torch.nn.Module())
                owner = owner.get_submodule(one)
            owner.register_buffer(name, as_read(tensor))


class ExactLinear(torch.nn.Module):
    """A Linear in float32 that quantises nothing. It dequantises at each use, in system memory, and multiplies by some
    rows at a time: a whole weight in float32 takes more than what a block computes with.

    Args:
        layer: whose weight is composite.
        dequantised: gives a weight as a plain one in float32.
    """

    def __init__(self, layer: Any, dequantised: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._quantised, self._dequantised = layer.weight.detach(), dequantised
        self.bias = _float(layer.bias)
        self.pre_quant_scale = _float(getattr(layer, "pre_quant_scale", None))

    @property
    def weight(self) -> torch.Tensor:
        """The dequantised weight: a model's own code may read it."""
        return self._dequantised(self._quantised)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.pre_quant_scale is not None:
            x = x * self.pre_quant_scale
        try:
            weight = self._dequantised(self._quantised.to("cpu"))  # classes of weights know `to`, and not all `cpu`
        except (RuntimeError, TypeError):  # a library may keep its weights where they are
            weight = self.weight
        output = x.new_empty(*x.shape[:-1], weight.shape[0])
        for start in range(0, weight.shape[0], _ROWS):
            rows = slice(start, start + _ROWS)
            output[..., rows] = torch.nn.functional.linear(x, weight[rows].to(x.device))
        return output if self.bias is None else output.add_(self.bias)


def with_layers(module: torch.nn.Module, layer_of: LayerOf) -> torch.nn.Module:
    """A copy of a module, which shares everything else. What stands in it twice does so in the copy."""
    return _copied(module, layer_of, {})


def _copied(module: torch.nn.Module, layer_of: LayerOf, made: dict[int, torch.nn.Module]) -> torch.nn.Module:
    existing = made.get(id(module))
    if existing is not None:
        return existing
    copied = layer_of(module)
    if copied is None:
        copied = object.__new__(type(module))
        vars(copied).update(vars(module))
        parameters, buffers, children = tables(module)
        set_tables(copied, Tables(parameters, buffers, {}))
        made[id(module)] = copied
        tables(copied).children.update(
            {name: None if child is None else _copied(child, layer_of, made) for name, child in children.items()}
        )
    made[id(module)] = copied
    return copied


def in_float32(module: torch.nn.Module, layer_of: LayerOf) -> torch.nn.Module:
    """A copy of a module in float32, with weights of its own where they are not float32 already."""
    replacement = layer_of(module)
    if replacement is not None:
        return replacement
    made: torch.nn.Module = object.__new__(type(module))
    vars(made).update(vars(module))
    parameters, buffers, children = tables(module)
    set_tables(
        made,
        Tables(
            {name: _float(one) for name, one in parameters.items()},
            {name: _float(one) for name, one in buffers.items()},
            {name: None if one is None else in_float32(one, layer_of) for name, one in children.items()},
        ),
    )
    return made


def _float(tensor: Any) -> Any:
    """A tensor or parameter in float32; whole numbers and complex ones as they are."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype in (torch.float32, torch.float64):
        return tensor
    made = tensor.detach().float()
    return torch.nn.Parameter(made, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else made
