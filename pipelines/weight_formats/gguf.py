"""GGUF weights as diffusers has them: bytes, which its layers dequantise at each use.

A parameter of diffusers' own class has the bytes as its memory and the type of quantisation as an attribute. In the
compiling process a layer reads the bytes as a plain tensor and dequantises them by diffusers' own functions, which
Inductor makes one kernel of.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from typing_extensions import override

from ...common.torch_private import without_class
from ...compiler.composite_weights import MEMORY, WeightParts, class_name
from ...compiler.computed_tables import ComputedTables
from ...compiler.layer_swap import ComponentTensors
from .format import LibraryFormat

_MODULE = "diffusers.quantizers.gguf.utils"


def _library() -> Any:
    """diffusers' module; None before it is imported: then nobody has such a weight."""
    return sys.modules.get(_MODULE)


def _is_of(value: Any, name: str) -> bool:
    library_class = getattr(_library(), name, None)
    return library_class is not None and type(value) is library_class


class Gguf(LibraryFormat):
    """Known by the type of quantisation, which says what each byte is."""

    @override
    def parts(self, weight: Any) -> WeightParts | None:
        if not _is_of(weight, "GGUFParameter"):
            return None
        library, kind = _library(), getattr(weight, "quant_type", None)
        # A graph's record of code follows functions by their names; eager finds them in this table.
        used = getattr(library, "dequantize_functions", {}).get(kind)
        if kind is None or used is None or used is not getattr(library, f"dequantize_blocks_{kind.name}", None):
            return None
        return WeightParts({MEMORY: without_class(weight)}, (class_name(type(weight)), kind.name))

    @override
    def arguments(self, weight: Any) -> tuple[Any, ...]:
        return without_class(weight), False, weight.quant_type

    @override
    def serves(self, layer: torch.nn.Module) -> bool:
        """Kernels of others' that diffusers may be told to take compute something else."""
        return _is_of(layer, "GGUFLinear") and getattr(_library(), "ops", None) is None

    @override
    def remade(self, layer: Any) -> torch.nn.Module:
        return DequantisingLinear(layer)

    @override
    def dequantised(self, weight: Any) -> torch.Tensor:
        return dequantise(without_class(weight), weight.quant_type, torch.float32).float()


def dequantise(memory: torch.Tensor, kind: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The values of bytes [rows, bytes of a row] -> [rows, values of a row].

    Args:
        kind: gguf's type of quantisation.
        dtype: to compute in; None: float16, as the scales are.
    """
    library = _library()
    size, length = library.GGML_QUANT_SIZES[kind]
    blocks = memory.view(torch.uint8).reshape(-1, length)
    values: torch.Tensor = library.dequantize_functions[kind](blocks, size, length, dtype)
    return values.reshape(*memory.shape[:-1], memory.shape[-1] // length * size)


class DequantisingLinear(torch.nn.Module):
    """diffusers' layer, which reads the bytes as a plain tensor."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight: Any = ComponentTensors({MEMORY: without_class(layer.weight)})
        self.bias = layer.bias
        self._kind, self._dtype = layer.weight.quant_type, layer.compute_dtype
        self.train(layer.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ComputedTables():
            weight = dequantise(getattr(self.weight, MEMORY), self._kind).to(self._dtype)
        bias = None if self.bias is None else self.bias.to(self._dtype)
        return torch.nn.functional.linear(x, weight, bias)
