"""What Inductor takes for the same because it is in the example: no graph comes of it that others would be wrong by."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.models import toy

from onegraph.backends.inductor import InductorBackend
from onegraph.common.errors import CompileError

SERVED = [[[5, 11], [3, 0]], [[2, 29], [13, 0]]]  # rows; how many come first


class FirstRows(torch.nn.Module):
    """Writes into the first columns, as models do that have a prefix."""

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        out = x.sin()
        out[:, : first.shape[0]] = x[:, : first.shape[0]].cos()
        return out


def exported(columns: int, first: int) -> torch.export.ExportedProgram:
    dim = torch.export.Dim.DYNAMIC(min=1, max=64)
    with InductorBackend().capture_settings():
        return torch.export.export(
            FirstRows(),
            (torch.ones(3, columns), torch.ones(first, 0)),
            dynamic_shapes=({0: dim, 1: dim}, {0: dim}),
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def test_sizes_that_coincide_in_the_example_are_not_taken_for_the_same(tmp_path: Path) -> None:
    inputs = (torch.ones(3, 7), torch.ones(7, 0))
    with pytest.raises(CompileError, match="it would serve only calls with"):
        InductorBackend().compile(exported(7, 7), inputs, tmp_path, served=SERVED)


def test_a_graph_of_another_example_is_right_where_they_coincide(tmp_path: Path) -> None:
    backend, module = InductorBackend(), FirstRows()
    backend.compile(exported(9, 4), (torch.ones(3, 9), torch.ones(4, 0)), tmp_path, served=SERVED)
    runner = backend.load(tmp_path, toy.CPU)
    runner.bind({})
    for rows, columns, first in ((3, 9, 4), (2, 7, 7), (5, 11, 2), (4, 30, 29)):
        x, prefix = torch.randn(rows, columns), torch.ones(first, 0)
        torch.testing.assert_close(runner(x, prefix), module(x, prefix))
