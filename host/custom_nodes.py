"""Whether code of other custom nodes can run between two calls of a sampling.

From the start of a run to our call, other code than ComfyUI's own runs only through wrappers, callbacks, functions in
the model's options, samplers and guiders. Where one of those is not the host's, the whole model is checked before
every call; where none is, a part of it, another part each time. The whole check of a full-size UNet reads some 10,000
places in memory, which takes milliseconds where a step has left nothing of them in the caches.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, MethodType
from typing import Any

import torch

_PACK = Path(__file__).resolve().parents[1].as_posix()
_NODES = "/custom_nodes/"
_DEEPEST = 80  # frames from our call up to the sampling
_SAMPLING = "inner_sample"  # comfy.samplers.CFGGuider's: below it all code between calls runs
_SAMPLERS = ("comfy", "samplers.py")
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


def is_foreign(function: Any) -> bool:
    """Whether a function, or a bound method, partial or object that is called, is neither the host's nor ours."""
    while isinstance(function, functools.partial | MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    code = getattr(function, "__code__", None)
    if code is None and callable(function):
        code = getattr(type(function).__call__, "__code__", None)
    return isinstance(code, CodeType) and _is_foreign(code)


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
    """The same for all that a patcher brings along."""
    found = (getattr(patcher, name, {}) for name in ("wrappers", "callbacks", "model_options"))
    return any(in_options(options) for options in found)


def in_call(options: Mapping[str, Any]) -> bool:
    """Whether a foreign function may have run since the last call of a sampling, by this call's transformer_options."""
    return in_options({name: options.get(name, {}) for name in ("wrappers", "callbacks")}) or around()


def _is_steered(control: Any) -> bool:
    """Whether a ControlNet or one of those before it is a foreign one."""
    while control is not None:
        if is_foreign(getattr(type(control), "get_control", None)):
            return True
        control = getattr(control, "previous_controlnet", None)
    return False


def around() -> bool:
    """Whether a foreign function waits for this call: a sampler, a guider, a wrapper, whoever calls the model.

    Looks at the callers up to the sampling, and there at the callback and the sampler that it was given, and at the
    ControlNets that were asked before the call.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            return True  # not a sampling of the host's at all
        code = frame.f_code
        if _is_foreign(code):
            return True
        if code.co_filename.endswith(_SAMPLERS[1]) and _is_steered(frame.f_locals.get(_STEERING)):
            return True
        if code.co_name == _SAMPLING and tuple(Path(code.co_filename).parts[-2:]) == _SAMPLERS:
            given = frame.f_locals
            sampler = given.get("sampler")
            calls = (given.get("callback"), getattr(sampler, "sampler_function", None))
            options = getattr(sampler, "extra_options", {})
            methods = (getattr(type(one), "sample", None) for one in (given.get("self"), sampler))
            return any(is_foreign(one) for one in (*calls, *methods)) or in_options(options)
        frame = frame.f_back
    return True
