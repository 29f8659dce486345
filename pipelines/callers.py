"""Whether code of the user's own can run between two calls of a denoising loop.

Such a loop calls diffusers, torch and accelerate, and what the user gave it: a callback, a scheduler, a wrapper of a
module. Where one of those is the user's own, the whole model is checked before every call; where none is, a part of
it, another part each time, as the whole check of a full-size UNet takes milliseconds.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import CodeType, FrameType

_PACK = Path(__file__).resolve().parents[1]
_LIBRARIES = ("torch", "diffusers", "accelerate", "contextlib")
_CALLBACKS = ("callback_on_step_end", "callback")
_DEEPEST = 60  # frames from our call up to the pipeline's


@functools.cache
def _folders() -> tuple[str, ...]:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    found = [Path(file) for file in files if file]
    roots = [file.parent if file.name == "__init__.py" else file for file in found]
    return tuple(f"{root.resolve().as_posix()}" for root in [_PACK, *roots])


@functools.lru_cache(maxsize=4096)
def _is_library(code: CodeType) -> bool:
    file = Path(code.co_filename).resolve()
    if file.is_relative_to(_PACK / "tests"):
        return False
    return file.as_posix().startswith(_folders())


@functools.lru_cache(maxsize=4096)
def _is_pipelines_call(code: CodeType) -> bool:
    return code.co_name == "__call__" and "/diffusers/pipelines/" in Path(code.co_filename).as_posix()


def only_libraries() -> bool:
    """Whether nothing but libraries stands between this call and the pipeline that makes it, and gets in between."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None or not _is_library(frame.f_code):
            return False
        if _is_pipelines_call(frame.f_code):
            given = frame.f_locals
            scheduler = getattr(given.get("self"), "scheduler", None)
            own = type(scheduler).__module__.startswith("diffusers.")
            return own and all(given.get(name) is None for name in _CALLBACKS)
        frame = frame.f_back
    return False
