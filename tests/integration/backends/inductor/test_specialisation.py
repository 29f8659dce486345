"""What is taken for the same because it is in the example: no graph comes of it, which would be wrong for others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.models import toy

from onegraph.backends.inductor import InductorBackend
from onegraph.common.errors import CompileError
from onegraph.common.torch_private import assume

SERVED = [[[5, 11], [3, 0]], [[2, 29], [13, 0]]]  # rows and columns; how many columns come first


class Written(torch.nn.Module):
    """Whose capture takes the columns for those that come first, where they are in the example."""

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        count = first.shape[0]
        assume(count <= x.shape[1])
        out = x.sin()
        out[:, :count] = x[:, :count].cos()
        return out


class Added(torch.nn.Module):
    """Of which Inductor does."""

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        count = first.shape[0]
        assume(count <= x.shape[1])
        out = x.clone()
        out[:, count:].addcmul_(x[:, count:], x[:, count:])
        out[:, :count].addcmul_(x[:, :count], x[:, :count], value=3)
        return out


def compiled(module: torch.nn.Module, folder: Path, columns: int, first: int) -> InductorBackend:
    backend, inputs = InductorBackend(), (torch.ones(3, columns), torch.ones(first, 0))
    dim = torch.export.Dim.DYNAMIC(min=1, max=64)
    with backend.capture_settings():
        exported = torch.export.export(
            module,
            inputs,
            dynamic_shapes=({0: dim, 1: dim}, {0: dim}),
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    backend.compile(exported, inputs, folder, served=SERVED)
    return backend


@pytest.mark.parametrize("module", [Written(), Added()])
def test_sizes_that_coincide_in_the_example_are_not_taken_for_the_same(module: torch.nn.Module, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"its capture has s|it would serve only calls with Eq"):
        compiled(module, tmp_path, 7, 7)


@pytest.mark.parametrize("module", [Written(), Added()])
def test_a_graph_of_another_example_is_right(module: torch.nn.Module, tmp_path: Path) -> None:
    runner = compiled(module, tmp_path, 9, 4).load(tmp_path, toy.CPU)
    runner.bind({})
    for rows, columns, first in ((3, 9, 4), (5, 11, 2), (4, 30, 29)):
        x, prefix = torch.randn(rows, columns), torch.ones(first, 0)
        torch.testing.assert_close(runner(x, prefix), module(x, prefix))


def test_a_graph_that_needs_no_difference_is_right_where_there_is_none(tmp_path: Path) -> None:
    runner = compiled(Added(), tmp_path, 9, 4).load(tmp_path, toy.CPU)
    runner.bind({})
    for rows, columns in ((3, 9), (1, 7), (2, 1)):
        x, prefix = torch.randn(rows, columns), torch.ones(columns, 0)
        torch.testing.assert_close(runner(x, prefix), Added()(x, prefix))
