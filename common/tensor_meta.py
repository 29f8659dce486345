"""What compiled code relies on of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the graph store describes tensors, too, and works without torch
    import torch


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without `torch.`, e.g. `float16`."""
    return str(dtype).removeprefix("torch.")


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
        return cls(name, tuple(tensor.shape), tuple(tensor.stride()), dtype_name(tensor.dtype))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorMeta:
        """Read what `to_json` made, also after a way through JSON, which knows no tuples."""
        return cls(data["name"], tuple(data["shape"]), tuple(data["stride"]), data["dtype"])

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {"name": self.name, "shape": self.shape, "stride": self.stride, "dtype": self.dtype}

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's."""
        import torch

        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype
