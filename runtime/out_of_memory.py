"""A GPU that has no memory left in the middle of a compiled call: room is made once, then the call is made again."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch

from ..common import memory
from ..common.shapes import Refused

log = logging.getLogger("onegraph.compiler")

P = ParamSpec("P")
R = TypeVar("R")

_SHIM = "API call failed"  # all that AOTInductor says of an error inside a graph; the error itself goes to its log


def retried(call: Callable[[], torch.Tensor], make_room: Callable[[], object], device: torch.device) -> torch.Tensor:
    """The result of a call, which is made a second time, with more room, when memory ran out.

    Raises:
        torch.OutOfMemoryError: it ran out again.
    """
    try:
        return call()
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        if not _suspicious(error, device):
            raise
    make_room()  # not inside the handler, where the error's traceback holds the call's tensors
    memory.give_back(device)
    before = _refusals(device)  # only now: reading it takes longer than all checks of a call
    try:
        return call()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if _suspicious(error, device) and (memory.ran_out(error) or _refusals(device) > before):
            raise torch.OutOfMemoryError(str(error)) from error
        raise


def _suspicious(error: RuntimeError, device: torch.device) -> bool:
    """Whether memory may be what an error is about."""
    return memory.ran_out(error) == "device memory" or (device.type == "cuda" and _SHIM in str(error))


def _refusals(device: torch.device) -> int:
    """How often torch's allocator had no memory to give."""
    return int(torch.cuda.memory_stats(device).get("num_ooms", 0)) if device.type == "cuda" else 0


@dataclass(frozen=True)
class Exhausted(Refused):
    """Memory ran out in a compiled call; a later run may have more of it."""


def refused_when_exhausted(call: Callable[P, R]) -> Callable[P, R | Exhausted]:
    """Have a function that makes a compiled call return `Exhausted` where it would raise that memory ran out."""

    @functools.wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | Exhausted:
        try:
            return call(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            log.info("a compiled call ran out of memory: %s", str(error).partition("\n")[0])
        return Exhausted("memory ran out in a compiled call, also after captured CUDA graphs were released")

    return wrapper
