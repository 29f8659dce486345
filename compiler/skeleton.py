"""A module's structure without its weights, as bytes: how a model travels to the compiling process.

Every tensor is replaced by its shape, stride and dtype, so a UNet of 5 GB travels as tens of kilobytes and
compiling needs no second copy of the weights. The bytes are a pickle and go from a process to its own child
only; nothing of the graph store is ever unpickled.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch

from ..backends import Constant
from ..common.errors import CaptureError, in_brief
from . import fingerprint


def _bare(cls: type[torch.nn.Module]) -> torch.nn.Module:
    return cls.__new__(cls)


class _Pickler(pickle.Pickler):
    """Leaves out what custom nodes left behind on modules and no code of the model's classes speaks of."""

    def __init__(self, file: io.BytesIO, module: torch.nn.Module) -> None:
        super().__init__(file, protocol=4)
        self._spoken_of = fingerprint.names_spoken_of(module)

    def reducer_override(self, obj: Any) -> Any:
        cls = type(obj)
        usual = all(
            getattr(cls, name, None) is getattr(object, name, None)
            for name in ("__reduce_ex__", "__reduce__", "__getstate__")
        )
        if not isinstance(obj, torch.nn.Module) or not usual:
            return NotImplemented
        state = {
            name: value
            for name, value in vars(obj).items()
            if name in fingerprint.OF_EVERY_MODULE
            or (name in self._spoken_of and not fingerprint.is_own_method(obj, name, value))
        }
        return _bare, (cls,), state

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        kind = "parameter" if isinstance(obj, torch.nn.Parameter) else "tensor"
        if type(obj) not in (torch.Tensor, torch.nn.Parameter):
            raise CaptureError(
                f"A weight is a {type(obj).__name__}, which only its own library can compute with; "
                "load the model in a plain dtype to compile it."
            )
        return kind, id(obj), tuple(obj.shape), tuple(obj.stride()), str(obj.dtype).removeprefix("torch.")


class _Zeros:
    """Zeros for weights that are only read, in next to no memory.

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
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
        return self._take(extent, dtype).as_strided(shape, stride)

    def _take(self, extent: int, dtype: torch.dtype) -> torch.Tensor:
        if self._device.type != "cuda" or not extent:
            return torch.zeros(extent, dtype=dtype, device=self._device)
        size = extent * dtype.itemsize
        if self._buffer is None or self._used + size > self._buffer.nbytes:
            self._buffer = torch.zeros(max(self._BUFFER, 2 * size), dtype=torch.uint8, device=self._device)
            self._used = 0
        place = _Place(self._buffer, self._used, size)
        self._used += self._APART
        return torch.as_tensor(place, device=self._device).view(dtype)


class _Place:
    """A part of a buffer as a foreign array, from which torch makes a tensor with a storage of its own."""

    def __init__(self, buffer: torch.Tensor, offset: int, size: int) -> None:
        self._buffer = buffer  # keeps the memory
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (buffer.data_ptr() + offset, False),
            "version": 3,
        }


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, device: torch.device) -> None:
        super().__init__(io.BytesIO(data))
        self._zeros = _Zeros(device)
        self._seen: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        kind, identity, shape, stride, dtype = pid
        if identity not in self._seen:
            # zeros, not empty: the trial run in the compiling process must be finite.
            tensor = self._zeros.take(shape, stride, getattr(torch, dtype))
            if kind == "parameter":
                tensor = torch.nn.Parameter(tensor, requires_grad=False)
            self._seen[identity] = tensor
        return self._seen[identity]


def dump(module: torch.nn.Module) -> bytes:
    """The structure of `module` without weights.

    Raises:
        CaptureError: the module holds something that cannot travel, e.g. a function local to another pack.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, module).dump(module)
    except CaptureError:
        raise
    except Exception as error:  # pickle raises PicklingError, AttributeError, TypeError and whatever __reduce__ raises
        raise CaptureError(
            f"The model holds an object that cannot be handed to the compiler ({in_brief(error)}); "
            "it was probably put there by another custom node, without which it can be compiled."
        ) from error
    return buffer.getvalue()


def load(data: bytes, device: torch.device) -> torch.nn.Module:
    """Rebuild a dumped module on `device` with zeros for weights (same shapes, strides, dtypes and sharing).

    The weights are to be read only: on a GPU they share memory.
    """
    module = _Unpickler(data, device).load()
    assert isinstance(module, torch.nn.Module)
    return module


def zeros(constants: Sequence[Constant], device: torch.device) -> dict[str, torch.Tensor]:
    """Weights of zeros by name, to be read only: on a GPU they share 64 MiB of memory."""
    made = _Zeros(device)
    return {c.name: made.take(c.shape, c.stride, getattr(torch, c.dtype)) for c in constants}
