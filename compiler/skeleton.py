"""Turn a module into a skeleton: the module without its weights, as bytes for the compiling process.

Every tensor is replaced by its shape, stride and dtype, so a UNet of 5 GB travels as tens of kilobytes and
compiling needs no second copy of the weights. The bytes are a pickle and go from a process to its own child
only. Nothing of the graph store is ever unpickled.
"""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from ..common.errors import CaptureError, in_brief
from ..common.tensor_meta import TensorMeta
from ..common.zeros import Zeros
from .code import fingerprint
from .composite_weights import NONE, PLAIN, Composites, class_name


class _Pickler(pickle.Pickler):
    """Leaves out what custom nodes left behind on modules and no code of the model's classes refers to."""

    def __init__(self, file: io.BytesIO, module: torch.nn.Module, composites: Composites) -> None:
        super().__init__(file, protocol=4)
        self._referenced = fingerprint.referenced_names(module)
        self._modules = {type(child).__module__ for child in module.modules()}
        self._composites = composites

    def reducer_override(self, obj: Any) -> Any:
        cls = type(obj)
        if isinstance(obj, FunctionType) and "<locals>" in obj.__qualname__ and obj.__module__ in self._modules:
            raise CaptureError(
                f"The model's own code keeps a function that exists in this process alone ({obj.__qualname__}), "
                "which the compiler cannot be given; it runs eager."
            )
        if isinstance(obj, torch.Tensor):
            return self._composite(obj)
        if isinstance(obj, torch.Stream | torch.Event):  # of a copy that is under way
            return type(None), ()
        stand_in = self._composites.stand_in(obj)
        if stand_in is not None:
            return copy.copy, (stand_in,)
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

    def _composite(self, weight: torch.Tensor) -> Any:
        """How a weight that is no plain tensor is made again: from its parts, which travel as tensors do."""
        made = self._composites.made(weight)
        if made is None:
            raise CaptureError(
                f"A weight is a {type(weight).__name__}, which only its own library can compute with; "
                "load the model in a plain dtype to compile it."
            )
        if isinstance(weight, torch.nn.Parameter) and not issubclass(type(weight), torch.nn.Parameter):
            return torch.nn.Parameter, (made[0](*made[1]), False)
        return made

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, type) and class_name(obj) in self._composites.classes:
            return "class", class_name(obj)
        if not isinstance(obj, torch.Tensor) or type(obj) not in PLAIN:
            return None
        kind = "parameter" if isinstance(obj, torch.nn.Parameter) else "tensor"
        # Plain values: the compiling process knows the pack, and so the class, by another name.
        return kind, TensorMeta.of(str(id(obj)), obj).to_json()


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, device: torch.device, class_of: Callable[[str], type]) -> None:
        super().__init__(io.BytesIO(data))
        self._class_of = class_of
        self._zeros = Zeros(device)
        self._seen: dict[str, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        kind, described = pid
        if kind == "class":
            return self._class_of(described)
        meta = TensorMeta.from_json(described)
        if meta.name not in self._seen:
            # zeros, not empty: the trial run in the compiling process must be finite.
            tensor = self._zeros.take(meta.shape, meta.stride, meta.torch_dtype)
            if kind == "parameter":
                tensor = torch.nn.Parameter(tensor, requires_grad=False)
            self._seen[meta.name] = tensor
        return self._seen[meta.name]


def dump(module: torch.nn.Module, composites: Composites = NONE) -> bytes:
    """Return the skeleton of a module.

    Args:
        composites: weights of several plain tensors that may be in it.

    Raises:
        CaptureError: the module holds something that cannot travel, e.g. a function local to another pack.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, module, composites).dump(module)
    except CaptureError:
        raise
    except Exception as error:  # pickle raises PicklingError, AttributeError, TypeError and whatever __reduce__ raises
        raise CaptureError(
            f"The model holds an object that cannot be handed to the compiler ({in_brief(error)}); "
            "it was probably put there by another custom node, without which it can be compiled."
        ) from error
    return buffer.getvalue()


def no_class(name: str) -> type:
    """Refuse every class that stands inside of a function. Raises CaptureError."""
    raise CaptureError(f"The model has a class that the compiling process cannot make again ({name}).")


def load(data: bytes, device: torch.device, class_of: Callable[[str], type] = no_class) -> torch.nn.Module:
    """Rebuild a dumped module on a device with zeros for weights (same shapes, strides, dtypes and sharing).

    The weights are to be read only: on a GPU they share memory.

    Args:
        class_of: gives the client's classes that stand inside of functions, by `module:name`.
    """
    module = _Unpickler(data, device, class_of).load()
    assert isinstance(module, torch.nn.Module)
    return module
