"""Which pipeline calls a module, and whether code of the user's own can run between two of its calls.

A denoising loop calls diffusers, torch and accelerate, and what the user gave it: a callback, a scheduler, a wrapper
of a module. Where one of those is the user's own, the whole model is checked before every call; where none is, a part
of it, another part each time, as the whole check of a full-size UNet takes milliseconds.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch

from ..common.torch_private import hook_tables

log = logging.getLogger("onegraph.pipelines")

_PACK = Path(__file__).resolve().parents[1]
_OWN = ("backends", "common", "compiler", "graph_cache", "pipelines", "runtime")  # other folders there hold anything
_LIBRARIES = ("torch", "diffusers", "accelerate", "contextlib")
_BASES = ("huggingface_hub", "abc", "typing", "enum", "collections")  # that diffusers' classes derive from
_DEEPEST = 200  # frames from our call up to the pipeline's
_BUILT_IN = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_IN_LOOPS = ("scheduler", "guider", "controlnet", "unet", "transformer")  # how names of what runs in a loop begin


@dataclass(frozen=True)
class Caller:
    """The innermost pipeline of diffusers whose call leads to a call of a module.

    Attributes:
        pipe: the pipeline.
        given: the variables of its call.
        parameters: those that the user passes.
        direct: whether nothing but libraries stands between the two.
    """

    pipe: Any = field(repr=False)
    given: Mapping[str, Any] = field(repr=False)
    parameters: tuple[str, ...]
    direct: bool

    def mark(self) -> tuple[Any, ...] | None:
        """What tells this denoising loop from the next, which sets its scheduler's timesteps anew; None: nothing."""
        steps = getattr(getattr(self.pipe, "scheduler", None), "timesteps", None)
        try:
            return (weakref.ref(self.pipe), weakref.ref(steps)) if isinstance(steps, torch.Tensor) else None
        except TypeError:  # a class without weak references
            return None

    def runs_foreign_code(self, module: torch.nn.Module) -> bool:
        """Whether its loop runs anything that is no library's, besides what stands between it and the module.

        Never raises.
        """
        try:
            return self._runs_foreign_code(module)
        except Exception:  # of somebody's own class
            log.debug("nobody can tell what a pipeline runs", exc_info=True)
            return True

    def _runs_foreign_code(self, module: torch.nn.Module) -> bool:
        given = [self.given.get(name) for name in self.parameters]
        given += [value for name, value in self.given.items() if name.startswith("callback")]
        given += [value for one in given if isinstance(one, dict) for value in one.values()]
        if any(callable(one) for one in given if one is not self.pipe):
            return True
        parts = [part for name, part in self.pipe.components.items() if name.startswith(_IN_LOOPS)]
        others = [part for part in parts if part is not None and part is not module]
        return not _is_of_libraries(self.pipe) or any(
            _runs_foreign_code(one) if isinstance(one, torch.nn.Module) else not _is_of_libraries(one) for one in others
        )


def calling() -> Caller | None:
    """The pipeline whose call leads here, or None: a user's own loop calls the module. Never raises."""
    try:
        return _calling()
    except Exception:  # of somebody's own class or frame; then everything is checked
        log.debug("nobody can tell which pipeline calls", exc_info=True)
        return None


def _calling() -> Caller | None:
    frame: FrameType | None = sys._getframe(1)
    direct = True
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_name == "__call__" and _is_pipelines_file(code.co_filename):
            given = frame.f_locals
            count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARKEYWORDS)
            return Caller(given.get("self"), given, code.co_varnames[:count], direct)
        direct = direct and _is_library_file(code.co_filename)
        frame = frame.f_back
    return None


# Libraries' files. By their names, not by code objects: two of those may be equal in different files.


@functools.cache
def _folders() -> tuple[Path, ...]:
    """The folders and single files of libraries, without links. Those that nobody has imported yet count, too."""
    specs = [importlib.util.find_spec(name) for name in (*_LIBRARIES, *_BASES)]
    found = [Path(spec.origin).resolve() for spec in specs if spec is not None and spec.origin and spec.has_location]
    return (*(_PACK / name for name in _OWN), *(f.parent if f.name == "__init__.py" else f for f in found))


@functools.lru_cache(maxsize=4096)
def _is_library_file(name: str) -> bool:
    if name.startswith("<"):  # code without a file: the interpreter's own, or anybody's
        return name.startswith("<frozen ")
    file = Path(name).resolve()
    return any(file.is_relative_to(folder) for folder in _folders())


@functools.lru_cache(maxsize=4096)
def _is_pipelines_file(name: str) -> bool:
    import diffusers

    return Path(name).resolve().is_relative_to(Path(diffusers.__file__).resolve().parent / "pipelines")


# Objects whose methods are all libraries' ----------------------------------------------------------------------


def _is_library_value(value: Any) -> bool:
    """Whether an attribute of a class or an object is no function, or one that is a library's with all it wraps."""
    if isinstance(value, property):
        return all(_is_library_value(one) for one in (value.fget, value.fset, value.fdel))
    value = getattr(value, "__func__", value)
    while isinstance(value, FunctionType | functools.partial):
        if isinstance(value, functools.partial):
            value = value.func
            continue
        if not _is_library_file(value.__code__.co_filename):
            return False
        value = getattr(value, "__wrapped__", None)
    return not callable(value) or isinstance(value, (type, *_BUILT_IN)) or _is_library_class(type(value))


def _is_library_class(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is not None and _is_library_file(file)


def _is_of_libraries(owner: Any) -> bool:
    """Whether what an object does is written in libraries: its class, those it derives from, what is put on it."""
    for cls in type(owner).__mro__[:-1]:
        if not _is_library_class(cls) or not all(map(_is_library_value, list(vars(cls).values()))):
            return False
    put = [value for name, value in vars(owner).items() if callable(getattr(type(owner), name, None))]
    return all(map(_is_library_value, put))


def _runs_foreign_code(module: torch.nn.Module) -> bool:
    """Whether a module or a part of it runs more than its class's own code. Ours and accelerate's are libraries'."""
    if not _is_library_class(type(module)):
        return True
    return any(any(hook_tables(one)) or not _is_library_value(vars(one).get("forward")) for one in module.modules())
