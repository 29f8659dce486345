"""One compiled library, loaded with weights of its own: by AOTInductor's C interface, or by torch's own loader.

torch's loader keeps Python's lock (the GIL) for the whole of a call. On a CPU a server would answer nobody for as long
as a step takes, and a graph that is warmed up in a thread would stop the threads beside it. The library's own C
interface, which the loader calls, too, is called here without the lock. Where a library lacks a part of it, or calls
operations that only torch's loader can provide, the loader does it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from ...common.errors import LoadError
from ...common.torch_private import require

_PREFIX = "AOTInductorModelContainer"
_NEEDED = (
    "CreateWithDevice", "Delete", "RunSingleThreaded", "GetNumInputs", "GetNumOutputs", "GetNumConstants",
    "GetConstantName", "GetConstantOriginalFQN", "UpdateUserManagedConstantBufferPairs",
)  # fmt: skip
_LAST_ERROR = "AOTInductorGetLastError"  # of newer versions of torch

_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule_of = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class Loaded(Protocol):
    """A compiled library with weights of its own. Not thread-safe."""

    def constant_names(self) -> list[str]:
        """Return the names of the weights that it reads."""

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Read these weights where they are from now on, those that are not named where they were.

        It keeps all tensors that it was ever given, for longer than it lives.

        Raises:
            RuntimeError: it does not know one.
        """

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Compute. It empties the list, so that an input that nobody else has is freed as early as it can be.

        Raises:
            RuntimeError: the graph failed, e.g. for want of memory.
        """


class Packaged:
    """What torch's own loader has loaded. Calls keep Python's lock.

    Args:
        path: an archive or, where torch takes that, the folder that it was unpacked to.
        index: of the GPU; -1: the current one, or a CPU.

    Raises:
        LoadError: this torch lacks a part of it.
        RuntimeError: it cannot be loaded.
    """

    def __init__(self, path: Path, index: int) -> None:
        loader = require("torch._C._aoti.AOTIModelPackageLoader")
        require("torch._C._aoti.AOTIModelPackageLoader.boxed_run")
        self._loader = loader(str(path), "model", True, 1, index)

    def constant_names(self) -> list[str]:
        return list(self._loader.get_constant_fqns())

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        # use_inactive=False, check_full_update=False, user_managed=True: it keeps the addresses only.
        self._loader.load_constants({**tensors}, False, False, True)

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = self._loader.boxed_run(inputs)
        return outputs


class _Entry(ctypes.Structure):
    """A weight as the interface takes it: `AOTInductorConstantMapEntry`."""

    _fields_ = (("name", ctypes.c_char_p), ("handle", ctypes.c_void_p))


class Library:
    """A library of an unpacked archive, which is let go of when nothing that was loaded from it is left.

    Raises:
        OSError: the system cannot load it.
        LoadError: it lacks a part of the interface, or this torch what is needed to call it.
    """

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        self.to_pointers = require("torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors")
        self.to_tensors = require("torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs")
        library = ctypes.CDLL(str(path))
        weakref.finalize(self, _let_go, library._handle, path).atexit = False
        self.functions: dict[str, Any] = {name: getattr(library, f"{_PREFIX}{name}", None) for name in _NEEDED}
        lacking = next((name for name, function in self.functions.items() if function is None), None)
        if lacking is not None:
            raise LoadError(f"torch {torch.__version__} compiles no {_PREFIX}{lacking} into a graph.")
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.functions["RunSingleThreaded"].argtypes = (pointer, pointer, size, pointer, size, pointer, pointer)
        self._last_error: Any = getattr(library, _LAST_ERROR, None)

    @classmethod
    def of(cls, unpacked: Path) -> Library | None:
        """Load the library of an unpacked archive; None where torch's own loader must do it.

        Raises:
            OSError: the system cannot load it.
            LoadError: torch's own loader would have to do it, and cannot on Windows.
        """
        libraries = [*unpacked.glob("*/data/aotinductor/model/*.so")]
        # Operations that have no function of their own in the library are listed beside it, and run by torch's loader.
        whole = len(libraries) == 1 and not libraries[0].with_suffix(".json").exists()
        if os.name == "nt":  # torch's loader looks for a .pyd there, and for sources, and then crashes
            if not whole:
                raise LoadError(
                    "The compiled graph asks for torch's own loader, which loads none on Windows; it runs eager."
                )
            return cls(libraries[0])
        with contextlib.suppress(LoadError):
            return cls(libraries[0]) if whole else None
        return None

    def call(self, name: str, *args: Any) -> None:
        """Call a function of the interface. Raises RuntimeError when it fails."""
        if self.functions[name](*args):
            raise self.failed(name)

    def failed(self, name: str) -> RuntimeError:
        """Describe that a function failed just now."""
        text = ctypes.c_char_p()
        if self._last_error is not None:
            self._last_error(ctypes.byref(text))
        why = f": {text.value.decode(errors='replace')}" if text.value else ""
        return RuntimeError(f"{_PREFIX}{name} API call failed{why}")


def _let_go(handle: int, path: Path) -> None:
    import _ctypes

    let_go: Callable[[int], None] = getattr(_ctypes, "FreeLibrary" if os.name == "nt" else "dlclose")
    let_go(handle)
    if os.name == "nt":  # which removed no library in use: of the archive's folder it is left, and folders
        with contextlib.suppress(OSError):
            path.unlink()
            for folder in path.parents[:6]:
                folder.rmdir()


class Container:
    """A library's container of one model, whose calls give up Python's lock.

    Args:
        device: where it computes; a GPU without a number is the current one.

    Raises:
        RuntimeError: it cannot be set up.
    """

    def __init__(self, library: Library, device: torch.device) -> None:
        self._library = library
        self._run = library.functions["RunSingleThreaded"]
        self._index = device.index
        self._to_pointers, self._to_tensors = library.to_pointers, library.to_tensors
        self._current_stream = require("torch._C._cuda_getCurrentRawStream") if device.type == "cuda" else None
        handle = ctypes.c_void_p()
        name, cubins = str(device).encode(), os.fsencode(library.folder)
        library.call("CreateWithDevice", ctypes.byref(handle), ctypes.c_size_t(1), name, cubins)
        self._handle = handle
        self._weights: dict[str, tuple[torch.Tensor, int]] = {}  # with the address of what the container holds it by
        self._held: list[Any] = []  # what it held any by, as capsules
        weakref.finalize(self, _end, library, handle, self._held).atexit = False
        self._inputs, self._outputs = self._count("GetNumInputs"), self._count("GetNumOutputs")
        self._input_handles = (ctypes.c_void_p * self._inputs)()
        self._output_handles = (ctypes.c_void_p * self._outputs)()
        self._names = dict(self._constants())

    def _count(self, what: str) -> int:
        count = ctypes.c_size_t()
        self._library.call(what, self._handle, ctypes.byref(count))
        return count.value

    def _constants(self) -> list[tuple[str, bytes]]:
        """The names of the weights, and what the container calls them."""
        names = []
        for number in range(self._count("GetNumConstants")):
            internal, original = ctypes.c_char_p(), ctypes.c_char_p()
            at = ctypes.c_size_t(number)
            self._library.call("GetConstantName", self._handle, at, ctypes.byref(internal))
            self._library.call("GetConstantOriginalFQN", self._handle, at, ctypes.byref(original))
            names.append(((original.value or b"").decode(), internal.value or b""))
        return names

    def constant_names(self) -> list[str]:
        return [*self._names]

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        unknown = tensors.keys() - self._names.keys()
        if unknown:
            raise RuntimeError(f"the graph has no weight {min(unknown)}")
        new = {name: one for name, one in tensors.items() if self._weights.get(name, (None,))[0] is not one}
        capsules = self._to_pointers([*new.values()])
        self._held += capsules
        for (name, one), capsule in zip(new.items(), capsules, strict=True):
            self._weights[name] = one, _pointer_of(capsule, None)
        pairs = (_Entry * len(tensors))(*(_Entry(self._names[name], self._weights[name][1]) for name in tensors))
        # use_inactive=False, validate_full_update=False
        self._library.call(
            "UpdateUserManagedConstantBufferPairs",
            self._handle,
            pairs,
            ctypes.c_size_t(len(tensors)),
            ctypes.c_bool(False),
            ctypes.c_bool(False),
        )

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if len(inputs) != self._inputs:  # of this the library would raise what only C++ can catch
            raise RuntimeError(f"the graph takes {self._inputs} inputs, not {len(inputs)}")
        stream = None
        if self._current_stream is not None:
            stream = self._current_stream(torch.cuda.current_device() if self._index is None else self._index)
        # Without names: this comes with every call of a block.
        self._input_handles[:] = [_pointer_of(capsule, None) for capsule in self._to_pointers(inputs)]
        inputs.clear()  # the graph takes the tensors over
        if self._run(
            self._handle, self._input_handles, self._inputs, self._output_handles, self._outputs, stream, None
        ):
            raise self._library.failed("RunSingleThreaded")
        outputs: list[torch.Tensor] = self._to_tensors([_capsule_of(one, None, None) for one in self._output_handles])
        return outputs


def _end(library: Library, handle: ctypes.c_void_p, held: list[Any]) -> None:
    library.functions["Delete"](handle)
    library.to_tensors(held)  # which frees what the container held them by
