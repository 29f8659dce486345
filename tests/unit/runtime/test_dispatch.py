from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from support.models import toy

from onegraph.runtime.dispatch import Call


def call(*inputs: torch.Tensor, chunk: int) -> Call:
    """A call of a batch and a table that belongs to no element of it."""
    specs = toy.TensorSpec("x", ("batch", 4), "float32"), toy.TensorSpec("table", ("rows", 4), "float32")
    shapes = toy.ShapeRange((toy.Dim("batch", 1, 4), toy.Dim("rows", 1, 8)), specs)
    request: Any = SimpleNamespace(shapes=shapes)
    return Call(request, inputs, lambda *given: given[0], "eager", chunk)


def test_a_batch_is_split_and_a_table_is_not() -> None:
    x, table = torch.randn(5, 4), torch.randn(5, 4)
    chunks = call(x, table, chunk=2).chunks()
    assert [[tuple(t.shape) for t in given] for given in chunks] == [
        [(2, 4), (5, 4)],
        [(2, 4), (5, 4)],
        [(1, 4), (5, 4)],
    ]
    assert torch.equal(torch.cat([x for x, _ in chunks]), x)


def test_what_fits_is_not_split() -> None:
    assert len(call(torch.randn(4, 4), torch.randn(8, 4), chunk=4).chunks()) == 1
    assert len(call(torch.randn(40, 4), torch.randn(8, 4), chunk=0).chunks()) == 1
