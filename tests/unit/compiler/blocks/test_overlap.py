"""Tensors of one memory that are called apart have no element in common."""

from __future__ import annotations

import itertools

import pytest
import torch

from onegraph.compiler.blocks.overlap import apart

BASE = torch.arange(4 * 6 * 8).reshape(4, 6, 8)


def addresses(tensor: torch.Tensor) -> list[int]:
    """Of each element; they are the values of `BASE`."""
    return tensor.flatten().tolist()


SLICES = [
    BASE,
    *(BASE[:, begin:end] for begin, end in itertools.combinations((0, 1, 2, 5, 6), 2)),
    *(BASE[..., begin:end] for begin, end in itertools.combinations((0, 3, 4, 8), 2)),
    *(BASE[begin:end] for begin, end in itertools.combinations((0, 1, 4), 2)),
    *(BASE[:, ::2], BASE[:, 1::2], BASE[..., ::2], BASE[..., 1::2]),
    *BASE.unbind(1),
    *BASE[:, :, :2].expand(4, 6, 2).unbind(0),
    *(BASE.transpose(1, 2)[:, :4], BASE.transpose(1, 2)[:, 4:]),
    *(BASE.as_strided((4, 2), (1, 2)), BASE.as_strided((4, 2), (1, 2), 4)),
    *(BASE[:1, :1, :1].expand(4, 6, 8)[:, :3], BASE[:1, :1, :1].expand(4, 6, 8)[:, 3:]),
    BASE.view(torch.int32)[:, :2],
]


def test_what_is_called_apart_has_no_element_in_common() -> None:
    found = 0
    for a, b in itertools.permutations(SLICES, 2):
        if apart([a, b]):
            found += 1
            assert a.dtype == b.dtype and not {*addresses(a)} & {*addresses(b)}, (a.shape, b.shape)
    assert found > 20


@pytest.mark.parametrize("sizes", [(2, 4), (1, 5), (6, 0), (1, 1, 4), (3, 1, 1, 1)])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_parts_of_a_tensor_are_apart(sizes: tuple[int, ...], dim: int) -> None:
    base = torch.zeros(6, 6, 6)
    parts = base.split_with_sizes(sizes, dim)
    assert apart(parts) and apart(parts[::-1])
    assert not apart([base, parts[0]])
    assert not apart([*parts, parts[0]])


def test_many_are_not_looked_at() -> None:
    assert not apart(torch.zeros(6, 6).unbind(0))
