"""Whether tensors of one memory have an element in common, at any of the sizes that a capture is made for.

A block may return the text's and the image's tokens as two slices of one tensor. No change of one can be seen in the
other, so a graph may return them as tensors of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from ...common.torch_private import surely

_MOST = 4  # tensors that are put into order


def apart(tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether tensors of one memory surely have no element in common: those that follow one another in one
    dimension do not, as slices and chunks that a tensor is split into."""
    if len(tensors) == 1:
        return True
    orders = [*itertools.permutations(tensors)] if len(tensors) <= _MOST else []
    return any(_follow(order, dim) for order in orders for dim in range(tensors[0].ndim))


def _follow(tensors: Sequence[torch.Tensor], dim: int) -> bool:
    """Whether each begins where the one before ends in a dimension, and nothing lies twice in all of them."""
    first = tensors[0]
    if any((one.dtype, one.ndim) != (first.dtype, first.ndim) for one in tensors):
        return False
    strides = first.stride()
    for before, one in itertools.pairwise(tensors):
        between = one.storage_offset() - before.storage_offset()
        alike = (surely(one.shape[n] == first.shape[n]) for n in range(one.ndim) if n != dim)
        if not surely(between == before.shape[dim] * strides[dim]) or not all(alike):
            return False
        if not all(surely(a == b) for a, b in zip(strides, one.stride(), strict=True)):
            return False
    whole = [*first.shape]
    whole[dim] = sum(one.shape[dim] for one in tensors)
    return _each_once(whole, strides)


def _each_once(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no element of a tensor lies where another one does: each step is as long as what lies within it."""
    extents = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    within = [*extents[1:], 1]
    return all(surely(stride >= extent) for stride, extent in zip(strides, within, strict=True))
