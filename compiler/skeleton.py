"""Turn a module into a skeleton: the module without its weights, as bytes for the compiling process.

Every tensor is replaced by its shape, stride and dtype, so a UNet of 5 GB travels as tens of kilobytes and
compiling needs no second copy of the weights. The bytes are a pickle and go from a process to its own child
only. Nothing of the graph store is ever unpickled.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

import torch

from ..common.errors import CaptureError, in_brief
from ..common.tensor_meta import TensorMeta
from ..common.zeros import Zeros
from . import fingerprint


class _Pickler(pickle.Pickler):
    """Leaves out what custom nodes left behind on modules and no code of the model's classes refers to."""

    def __init__(self, file: io.BytesIO, module: torch.nn.Module) -> None:
        super().__init__(file, protocol=4)
        self._referenced = fingerprint.referenced_names(module)

    def reducer_override(self, obj: Any) -> Any:
        cls = type(obj)
        # Since torch 2.14 every module has a `__getstate__` of torch's own.
        usual = all(
            getattr(cls, name, None) in (getattr(object, name, None), getattr(torch.nn.Module, name, None))
            for name in ("__reduce_ex__", "__reduce__", "__getstate__")
        )
        if not isinstance(obj, torch.nn.Module) or not usual:
            return NotImplemented
        state = {
            name: value
            for name, value in vars(obj).items()
            if name in fingerprint.OF_EVERY_MODULE
            or (name in self._referenced and not fingerprint.is_own_method(obj, name, value))
        }
        # Not a function of the pack: the compiling process knows the pack by another name.
        return copyreg.__newobj__, (cls,), state  # type: ignore[attr-defined]

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        kind = "parameter" if isinstance(obj, torch.nn.Parameter) else "tensor"
        if type(obj) not in (torch.Tensor, torch.nn.Parameter):
            raise CaptureError(
                f"A weight is a {type(obj).__name__}, which only its own library can compute with; "
                "load the model in a plain dtype to compile it."
            )
        # Plain values: the compiling process knows the pack, and so the class, by another name.
        return kind, TensorMeta.of(str(id(obj)), obj).to_json()


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, device: torch.device) -> None:
        super().__init__(io.BytesIO(data))
        self._zeros = Zeros(device)
        self._seen: dict[str, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        kind, described = pid
        meta = TensorMeta.from_json(described)
        if meta.name not in self._seen:
            # zeros, not empty: the trial run in the compiling process must be finite.
            tensor = self._zeros.take(meta.shape, meta.stride, meta.torch_dtype)
            if kind == "parameter":
                tensor = torch.nn.Parameter(tensor, requires_grad=False)
            self._seen[meta.name] = tensor
        return self._seen[meta.name]


def dump(module: torch.nn.Module) -> bytes:
    """Return the skeleton of a module.

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
    """Rebuild a dumped module on a device with zeros for weights (same shapes, strides, dtypes and sharing).

    The weights are to be read only: on a GPU they share memory.
    """
    module = _Unpickler(data, device).load()
    assert isinstance(module, torch.nn.Module)
    return module
