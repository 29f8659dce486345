"""Which pipeline calls a module: one denoising loop is one run."""

from __future__ import annotations

import functools
import sys
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ..common.log import logger

log = logger("pipelines")

_DEEPEST = 200  # frames from our call up to the pipeline's


@dataclass(frozen=True)
class Caller:
    """The innermost pipeline of diffusers whose call leads to a call of a module.

    Attributes:
        pipe: the pipeline.
    """

    pipe: Any = field(repr=False)

    def mark(self) -> tuple[Any, ...] | None:
        """What tells this denoising loop from the next, which sets its scheduler's timesteps anew; None: nothing."""
        steps = getattr(getattr(self.pipe, "scheduler", None), "timesteps", None)
        try:
            return (weakref.ref(self.pipe), weakref.ref(steps)) if isinstance(steps, torch.Tensor) else None
        except TypeError:  # a class without weak references
            return None


def calling() -> Caller | None:
    """The pipeline whose call leads here, or None: a user's own loop calls the module. Never raises."""
    try:
        return _calling()
    except Exception:  # of somebody's own class or frame; then everything is checked
        log.debug("nobody can tell which pipeline calls", exc_info=True)
        return None


def _calling() -> Caller | None:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_name == "__call__" and _is_pipelines_file(code.co_filename):
            return Caller(frame.f_locals.get("self"))
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=4096)
def _is_pipelines_file(name: str) -> bool:
    import diffusers

    return Path(name).resolve().is_relative_to(Path(diffusers.__file__).resolve().parent / "pipelines")
