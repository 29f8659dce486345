"""A GPU that has no memory left in the middle of a compiled call: make room once, then make the call again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ...common import memory
from ...common.outputs import Output

_SHIM = "API call failed"  # all that AOTInductor says of an error inside a graph; the error itself goes to its log


def retried(call: Callable[[], Output], make_room: Iterable[Callable[[], object]], device: torch.device) -> Output:
    """Make a call that may have run out of memory a second time, with more room.

    To be called outside the handler of the first error, whose traceback holds the call's tensors.

    Raises:
        torch.OutOfMemoryError: it ran out again.
    """
    for make in make_room:
        make()
    memory.give_back(device)
    before = _refusals(device)  # only now: reading it takes longer than all checks of a call
    try:
        return call()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if suspicious(error, device) and (memory.ran_out(error) or _refusals(device) > before):
            raise torch.OutOfMemoryError(str(error)) from error
        raise


def suspicious(error: RuntimeError, device: torch.device) -> bool:
    """Whether memory may be what an error is about."""
    return memory.ran_out(error) == "device memory" or (device.type == "cuda" and _SHIM in str(error))


def _refusals(device: torch.device) -> int:
    """How often torch's allocator had no memory to give."""
    return int(torch.cuda.memory_stats(device).get("num_ooms", 0)) if device.type == "cuda" else 0
