"""Which sampling of ComfyUI's calls here."""

from __future__ import annotations

import functools
import sys
import weakref
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_SAMPLING = "inner_sample"  # comfy.samplers.CFGGuider's: below it all code between calls runs
_EXECUTOR = "executor"  # variable of that function: an object that each sampling makes for itself
_SAMPLERS = ("comfy", "samplers.py")


@functools.lru_cache(maxsize=1024)
def _is_samplers(code: CodeType) -> bool:
    return tuple(Path(code.co_filename).parts[-2:]) == _SAMPLERS


def sampling() -> weakref.ref[Any] | None:
    """What tells the sampling that calls here from every other, gone when that is over; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _SAMPLING and _is_samplers(frame.f_code):
            executor = frame.f_locals.get(_EXECUTOR)
            return None if executor is None else weakref.ref(executor)
        frame = frame.f_back
    return None
