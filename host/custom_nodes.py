"""Whether code of other custom nodes can run between two calls of a sampling.

From the start of a run to our call, other code than ComfyUI's own runs only through wrappers, callbacks, functions in
the model's options, samplers and guiders. Where one of those is not the host's, the whole model is checked before
every call; where none is, a part of it, another part each time. The whole check of a full-size UNet reads some 10,000
places in memory, which takes milliseconds where a step has left nothing of them in the caches.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import sys
import sysconfig
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import torch

_PACK = Path(__file__).resolve().parents[1].as_posix()
_NODES = "/custom_nodes/"
_DEEPEST_WRAPPER = 4  # functions that wrap each other; below that nobody knows
_DEEPEST = 80  # frames from our call up to the sampling
_WHOLE_SAMPLING = "outer_sample"  # comfy.samplers.CFGGuider's: it loads the models and ends what their runs began
_SAMPLING = "inner_sample"  # the same class's: below it all code between calls runs
_EXECUTOR = "executor"  # variable of that function: an object that each sampling makes for itself
_SAMPLERS = ("comfy", "samplers.py")
_STEPPING = ("model_sampling", "latent_format", "model_config")  # parts of a model that compute between its calls
_STEERING = "control"  # variable of functions in that file: the ControlNet that was asked before the call


@functools.cache
def _trusted() -> tuple[str, ...]:
    """Folders of code that belongs to the host: its own, the libraries', ours."""
    import comfy

    folders = [Path(next(iter(comfy.__path__))).parent]
    folders += [Path(sysconfig.get_paths()[name]) for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    folders.append(Path(torch.__file__).parents[1])  # an environment may take its libraries from the one below it
    return tuple(f"{folder.resolve().as_posix()}/" for folder in folders)


@functools.lru_cache(maxsize=8192)
def _is_foreign(code: CodeType) -> bool:
    if code.co_filename.startswith("<"):
        return not code.co_filename.startswith("<frozen ")
    file = Path(code.co_filename).resolve().as_posix()
    if file.startswith(f"{_PACK}/"):
        rest = file.removeprefix(_PACK)
        return rest.startswith("/tests/") or _NODES in rest
    return _NODES in file or not file.startswith(_trusted())


def is_foreign(function: Any, depth: int = _DEEPEST_WRAPPER) -> bool:
    """Whether a function, or a bound method, partial or object that is called, is neither the host's nor ours.

    So is one that calls a foreign one: what it wraps, such as what `torch.no_grad()` decorates, and what it was given.
    """
    if isinstance(function, MethodType):
        return is_foreign(function.__func__, depth)
    if isinstance(function, functools.partial):
        below: list[Any] = [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, FunctionType):
        if _is_foreign(function.__code__):
            return True
        below = [getattr(function, "__wrapped__", None)]
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                below.append(cell.cell_contents)
    else:
        code = getattr(type(function).__call__, "__code__", None) if callable(function) else None
        return isinstance(code, CodeType) and _is_foreign(code)
    if any(_is_foreign_object(one) for one in below):
        return True
    functions = [one for one in below if isinstance(one, FunctionType | MethodType | functools.partial)]
    return bool(functions) and (depth == 0 or any(is_foreign(one, depth - 1) for one in functions))


def _is_foreign_object(value: Any) -> bool:
    """Whether a value is an object of a foreign class, whose methods a function that knows it may call."""
    if value is None or isinstance(value, FunctionType | MethodType | functools.partial | type):
        return False
    return is_foreign_class(type(value))


def is_foreign_class(cls: type) -> bool:
    """Whether a class, or one that it is derived from, has a foreign method, its own or one that was put there."""
    if cls.__module__ == "builtins" or issubclass(cls, torch.Tensor):
        return False
    known = _methods.get(cls)
    if known is not None and known.are_same(cls):
        return False
    _methods.pop(cls, None)
    found = _Methods(cls)
    if found.foreign:
        return True
    # Others may be of one run, and hold its models.
    if vars(sys.modules.get(cls.__module__, object)).get(cls.__qualname__) is cls:
        _methods[cls] = found
    return False


class _Methods:
    """The values of a class and of those it is derived from, and the code of all functions among them.

    Every look compares all of them with those of the last one; only what is to be done with them is saved.

    Attributes:
        foreign: whether one of the functions, or one that it wraps, is neither the host's nor ours.
    """

    def __init__(self, cls: type) -> None:
        self._bases = cls.__mro__
        self._tables = [vars(base) for base in self._bases]
        self._values = list(itertools.chain.from_iterable(map(_VALUES, self._tables)))
        self._functions: list[FunctionType] = []
        for value in self._values:
            function = getattr(value, "__func__", getattr(value, "fget", value))
            while isinstance(function, FunctionType):
                self._functions.append(function)
                function = getattr(function, _WRAPPED, None)
        self._wrapped, self._codes = self._wraps(), list(map(_CODE, self._functions))
        self.foreign = any(_is_foreign(code) for code in self._codes)

    def are_same(self, cls: type) -> bool:
        """Whether the class has the same values now, and its functions the same code."""
        return (
            cls.__mro__ == self._bases
            and _are_same(list(itertools.chain.from_iterable(map(_VALUES, self._tables))), self._values)
            and _are_same(list(map(_CODE, self._functions)), self._codes)
            and _are_same(self._wraps(), self._wrapped)
        )

    def _wraps(self) -> list[Any]:
        return list(map(dict.get, map(_OWN, self._functions), itertools.repeat(_WRAPPED)))


_CODE, _OWN = operator.attrgetter("__code__"), operator.attrgetter("__dict__")
_VALUES = operator.methodcaller("values")
_WRAPPED = "__wrapped__"
_methods: dict[type, _Methods] = {}  # of classes that their modules keep


def _are_same(found: list[Any], known: list[Any]) -> bool:
    """Whether these are the same objects: equal ones may be of different code."""
    return len(found) == len(known) and all(map(operator.is_, found, known))


def _functions(value: Any, depth: int = 4) -> Iterator[Any]:
    """Whatever can be called in nested options."""
    if isinstance(value, Mapping) and depth:
        for one in list(value.values()):
            yield from _functions(one, depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for one in value:
            yield from _functions(one, depth - 1)
    elif callable(value) and not isinstance(value, type):
        yield value


def in_options(options: Mapping[str, Any]) -> bool:
    """Whether options name a foreign function: wrappers, callbacks, what changes a step's result."""
    return any(is_foreign(function) for function in _functions(options))


def in_patcher(patcher: Any) -> bool:
    """The same for all that a patcher brings along, for its own methods and for what it puts into its model."""
    model = getattr(patcher, "model", None)
    patched = [*getattr(patcher, "object_patches", {}).values()]
    parts = (patcher, model, *(getattr(model, name, None) for name in _STEPPING), *patched)
    if any(_is_foreign_object(one) for one in parts) or any(is_foreign(one) for one in patched):
        return True
    found = (getattr(patcher, name, {}) for name in ("wrappers", "callbacks", "model_options"))
    return any(in_options(options) for options in found)


def in_sampling(known: Any = None) -> bool:
    """Whether the sampling that calls here was given foreign code to run between its steps.

    That is a guider, its model's patcher, a sampler, a callback, the guider's options, hooks of its conditioning, or
    whoever is told of progress. For the start of a run: what changes these later is foreign code, too.

    Args:
        known: a patcher in which nothing foreign is.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if _is_foreign(frame.f_code):
            return True
        if frame.f_code.co_name == _WHOLE_SAMPLING and _is_samplers(frame.f_code):
            return _is_given_foreign(frame.f_locals, known)
        frame = frame.f_back
    return True  # not a sampling of the host's at all


def _is_given_foreign(given: Mapping[str, Any], known: Any) -> bool:
    import comfy.utils

    guider, sampler = given.get("self"), given.get("sampler")
    if any(is_foreign_class(type(one)) for one in (guider, sampler)):
        return True
    patcher = getattr(guider, "model_patcher", None)
    if (patcher is None or patcher is not known) and in_patcher(patcher):
        return True
    calls = (given.get("callback"), getattr(sampler, "sampler_function", None), comfy.utils.PROGRESS_BAR_HOOK)
    if any(is_foreign(one) for one in calls if one is not None):
        return True
    options = (getattr(sampler, "extra_options", {}), getattr(guider, "model_options", {}))
    return any(in_options(one) for one in options) or _is_hooked(getattr(guider, "conds", {}))


def _is_hooked(conditioning: Any) -> bool:
    """Whether a conditioning comes with hooks of a foreign class."""
    for group in conditioning.values() if isinstance(conditioning, Mapping) else ():
        for cond in group if isinstance(group, list | tuple) else ():
            hooks = getattr(cond.get("hooks"), "hooks", ()) if isinstance(cond, Mapping) else ()
            if any(is_foreign_class(type(hook)) for hook in hooks):
                return True
    return False


def in_call(options: Mapping[str, Any]) -> bool:
    """Whether a foreign function may have run since the last call of a sampling, by this call's transformer_options.

    What the sampling was given is `in_sampling`'s business.
    """
    return in_options({name: options.get(name, {}) for name in ("wrappers", "callbacks")}) or around()


def _is_steered(control: Any) -> bool:
    """Whether a ControlNet or one of those before it is a foreign one."""
    while control is not None:
        if is_foreign(getattr(type(control), "get_control", None)):
            return True
        control = getattr(control, "previous_controlnet", None)
    return False


@functools.lru_cache(maxsize=1024)
def _is_samplers(code: CodeType) -> bool:
    return tuple(Path(code.co_filename).parts[-2:]) == _SAMPLERS


def around() -> bool:
    """Whether a foreign function waits for this call: a sampler, a guider, a wrapper, whoever calls the model.

    Looks at the callers up to the sampling, and at the ControlNets that were asked before the call.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            return True  # not a sampling of the host's at all
        code = frame.f_code
        if _is_foreign(code):
            return True
        if _is_samplers(code):
            if code.co_name == _SAMPLING:
                return False
            if _is_steered(frame.f_locals.get(_STEERING)):
                return True
        frame = frame.f_back
    return True


def sampling() -> weakref.ref[Any] | None:
    """What tells the sampling that calls here from every other, gone when that is over; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _SAMPLING and _is_samplers(frame.f_code):
            executor = frame.f_locals.get(_EXECUTOR)
            return None if executor is None else weakref.ref(executor)
        frame = frame.f_back
    return None
