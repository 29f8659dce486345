"""What compiled code relies on of a tensor, and tensors of zeros made from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TensorMeta:
    """A weight or buffer without its values.

    Attributes:
        name: in the captured module.
        stride: in elements.
        dtype: without "torch.", e.g. `float16`.
    """

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorMeta:
        """Describe a tensor."""
        return cls(name, tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch."))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's."""
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found
