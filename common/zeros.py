"""Tensors of zeros in place of weights, in next to no memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .tensor_meta import TensorMeta
from .torch_private import fakes_are_made


class Zeros:
    """Make zeros for weights that are only read.

    On the CPU such pages are never backed by memory as long as they are only read. On a GPU all weights lie over each
    other in one buffer, each with a storage of its own at an address of its own, so that neither a capture nor a
    compiler takes two of them for one: compiling then needs no room for a second copy of the model's weights.
    """

    _APART = 256  # bytes between two addresses: more than any alignment that kernels ask for
    _BUFFER = 64 << 20

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer: torch.Tensor | None = None
        self._used = 0

    def take(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of zeros, to be read only."""
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
        return self._take(extent, dtype).as_strided(shape, stride)

    def _take(self, extent: int, dtype: torch.dtype) -> torch.Tensor:
        if self._device.type != "cuda" or not extent or fakes_are_made():
            return torch.zeros(extent, dtype=dtype, device=self._device)
        size = extent * dtype.itemsize
        if self._buffer is None or self._used + size > self._buffer.nbytes:
            self._buffer = torch.zeros(max(self._BUFFER, 2 * size), dtype=torch.uint8, device=self._device)
            self._used = 0
        section = _Section(self._buffer, self._used, size)
        self._used += self._APART
        return torch.as_tensor(section, device=self._device).view(dtype)


class _Section:
    """A section of a buffer as a foreign array, from which torch makes a tensor with a storage of its own."""

    def __init__(self, buffer: torch.Tensor, offset: int, size: int) -> None:
        self._buffer = buffer  # keeps the memory
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (buffer.data_ptr() + offset, False),
            "version": 3,
        }


def zeros(weights: Iterable[TensorMeta], device: torch.device) -> dict[str, torch.Tensor]:
    """Return weights of zeros by name, to be read only: on a GPU they share 64 MiB of memory."""
    made = Zeros(device)
    return {w.name: made.take(w.shape, w.stride, w.torch_dtype) for w in weights}
