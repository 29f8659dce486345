"""Turn a module into a skeleton: the module without its weights, as bytes for the compiling process.

Every tensor is replaced by its shape, stride and dtype, so a UNet of 5 GB travels as tens of kilobytes and
compiling needs no second copy of the weights. The bytes are a pickle and go from a process to its own child
only. Nothing of the graph store is ever unpickled.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import importlib
import io
import pickle
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.nn.utils import parametrize

from ..common import code_digest
from ..common.errors import CaptureError, in_brief
from ..common.tensor_meta import TensorMeta
from ..common.torch_private import Tables, forget_loading_hooks, set_tables, tables
from ..common.zeros import Zeros
from .code import fingerprint
from .composite_weights import NONE, PLAIN, Composites, class_name

_PACK = __name__.removesuffix("compiler.skeleton")


def _is_packs(value: Any) -> bool:
    """Whether the pack itself has put a value on a module, as it does while calls of the module are routed."""
    return type(value).__module__.startswith(_PACK)


class _Pickler(pickle.Pickler):
    """Leaves out what custom nodes left behind on modules and no code of the model's classes refers to."""

    def __init__(self, file: io.BytesIO, module: torch.nn.Module, composites: Composites) -> None:
        super().__init__(file, protocol=4)
        self._module = module
        self._referenced = fingerprint.referenced_names(module)
        self._modules = {type(child).__module__ for child in module.modules()}
        self._composites = composites

    def reducer_override(self, obj: Any) -> Any:
        cls = type(obj)
        if self._is_own_local(obj):
            raise CaptureError(
                f"The model's own code keeps a function that exists in this process alone ({obj.__qualname__}), "
                "which the compiler cannot be given; it runs uncompiled."
            )
        if isinstance(obj, torch.Tensor):
            return self._composite(obj)
        if isinstance(obj, torch.Stream | torch.Event):  # of a copy that is under way
            return type(None), ()
        stand_in = self._composites.stand_in(obj)
        if stand_in is not None:
            return copy.copy, (stand_in,)
        if isinstance(obj, torch.nn.Module) and parametrize.is_parametrized(obj):
            return copy.copy, (_with_its_weights(obj),)
        # Since torch 2.14 every module has a `__getstate__` of torch's own.
        usual = all(
            getattr(cls, name, None) in (getattr(object, name, None), getattr(torch.nn.Module, name, None))
            for name in ("__reduce_ex__", "__reduce__", "__getstate__")
        )
        if not isinstance(obj, torch.nn.Module) or not usual:
            return NotImplemented
        is_local = "<locals>" in cls.__qualname__ and class_name(cls) not in self._composites.classes
        if is_local and obj is not self._module:
            return torch.nn.Module, ()  # no process can make its class again; whatever calls it is not captured
        state = {
            name: value
            for name, value in vars(obj).items()
            if name in fingerprint.OF_EVERY_MODULE
            or (name in self._referenced and not fingerprint.is_own_method(obj, name, value) and not _is_packs(value))
        }
        # Not a function of the pack: the compiling process knows the pack by another name.
        return copyreg.__newobj__, (cls,), state  # type: ignore[attr-defined]

    def _is_own_local(self, obj: Any) -> bool:
        """Whether a value is a function that the model's own code has made, and no name leads to."""
        return isinstance(obj, FunctionType) and "<" in obj.__qualname__ and obj.__module__ in self._modules

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
        if self._is_own_local(obj):
            place = _place_of(obj)
            return None if place is None else ("function", place)
        if not isinstance(obj, torch.Tensor) or type(obj) not in PLAIN:
            return None
        kind = "parameter" if isinstance(obj, torch.nn.Parameter) else "tensor"
        # Plain values: the compiling process knows the pack, and so the class, by another name.
        return kind, TensorMeta.of(str(id(obj)), obj).to_json()


def _with_its_weights(layer: Any) -> torch.nn.Module:
    """A layer whose weights torch computes from others at each use, with those that it has now; torch hands on none.

    No graph that reads one is ever bound: of such a layer that is in a block, the binding says so.
    """
    cls: Any = type(layer).__bases__[0]  # torch makes a class for each such layer
    made: torch.nn.Module = cls.__new__(cls)
    weights = {name: torch.nn.Parameter(getattr(layer, name), requires_grad=False) for name in layer.parametrizations}
    vars(made).update(vars(layer))
    parameters, buffers, children = tables(layer)
    children = {name: one for name, one in children.items() if name != "parametrizations"}
    set_tables(made, Tables({**parameters, **weights}, buffers, children))
    forget_loading_hooks(made)
    return made


def _place_of(function: FunctionType) -> list[Any] | None:
    """Where a function that another one makes, or that is in a dictionary of its module, is found again.

    None: it is not, or has values besides its code.
    """
    values = function.__closure__, function.__defaults__, function.__kwdefaults__
    module, outer = function.__module__, function.__qualname__.partition(".<locals>.")[0]
    try:
        for name, value in vars(importlib.import_module(module)).items():
            keys = [key for key, one in value.items() if one is function] if type(value) is dict else []
            if keys and type(keys[0]) is str:
                return [module, name, keys[0], code_digest.bytecode_digest(function)]
        number = _codes_in(module, outer).index(function.__code__)
    except (ImportError, AttributeError, ValueError):
        return None
    return None if any(values) else [module, outer, number, code_digest.bytecode_digest(function)]


def _codes_in(module: str, outer: str) -> list[CodeType]:
    function: Any = functools.reduce(getattr, outer.split("."), importlib.import_module(module))
    return [*code_digest.nested(function.__code__)]


def _function_at(module: str, name: str, place: int | str, digest: str) -> FunctionType:
    names = vars(importlib.import_module(module))
    if isinstance(place, str):
        function: FunctionType = names[name][place]
    else:
        function = FunctionType(_codes_in(module, name)[place], names)
        function.__module__ = module
    if code_digest.bytecode_digest(function) != digest:
        raise CaptureError(f"The code of {module} is another one in the compiling process; the model runs uncompiled.")
    return function


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
        if kind == "function":
            return _function_at(*described)
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
