"""The layer in float32 that quantised ones are judged by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from onegraph.compiler import layer_swap
from onegraph.compiler.layer_swap import ExactLinear

ROWS = 2 * layer_swap._ROWS + 100


class Products(TorchFunctionMode):
    """Notes how many rows each product has."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            self.rows.append(len(args[1]))
        return func(*args, **(kwargs or {}))


class Staying(torch.Tensor):
    """A weight that a library keeps where it is."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("not to another device")


def dequantised(weight: torch.Tensor) -> torch.Tensor:
    return weight.as_subclass(torch.Tensor).float() / 8


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("held_by", [torch.Tensor, Staying])
def test_some_rows_at_a_time_are_the_whole_product(bias: bool, held_by: type[torch.Tensor]) -> None:
    layer = torch.nn.Linear(16, ROWS, bias=bias)
    values = torch.randint(-8, 8, (ROWS, 16), dtype=torch.int8)
    layer.weight = torch.nn.Parameter(values.as_subclass(held_by), requires_grad=False)
    scale: Callable[..., Any] = layer.register_buffer
    scale("pre_quant_scale", torch.rand(16))
    x = torch.randn(2, 3, 16)
    exact = ExactLinear(layer, dequantised)
    with torch.no_grad(), Products() as products:
        found = exact(x)
    assert products.rows == [layer_swap._ROWS, layer_swap._ROWS, 100]
    wanted = torch.nn.functional.linear(x * exact.pre_quant_scale, dequantised(values), exact.bias)
    torch.testing.assert_close(found, wanted)
