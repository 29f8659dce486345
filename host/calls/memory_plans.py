"""ComfyUI's own compiler, where it would record or replay what a block graph does.

It records which memory a call of a model takes, and gives the next call the same. What block graphs take once (weights'
buffers, comparisons, workspaces) would be in there, so a call that graphs serve is made without a plan.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ..comfyui import contract

NOTE = "ComfyUI's memory plan is off"
_lock = threading.Lock()
_calls = 0  # that are under way without plans
_before = False  # what the host's option was before the first of these
_planned = False  # whether the host would plan for it


@contextlib.contextmanager
def off(device: torch.device) -> Iterator[bool]:
    """While this lasts the host begins no plan, in no thread: its option is one for the process.

    Args:
        device: of the call.

    Yields:
        Whether it would begin any there.
    """
    if contract.missing(contract.PLANNING) or contract.missing(contract.PLAN_OPTION):
        yield False
        return
    from comfy import model_prefetch
    from comfy.cli_args import args

    global _calls, _before, _planned
    with _lock:
        if not _calls:
            _before, _planned = args.disable_comfy_compiler, model_prefetch.malloc_graph_enabled(device)
        _calls += 1
        args.disable_comfy_compiler = True
    try:
        yield _planned
    finally:
        with _lock:
            _calls -= 1
            if not _calls:
                args.disable_comfy_compiler = _before


class MemoryPlans:
    """Whether the host plans this thread's memory, or captures its calls.

    Args:
        device: on which blocks run.
    """

    def __init__(self, device: torch.device) -> None:
        self._plans: dict[int, Any] = {}
        self._captures = device.type == "cuda"
        if not contract.missing(contract.PLANNING):
            from comfy import model_prefetch

            self._plans = model_prefetch.MALLOC_GRAPHS  # by threads; one for each that ever made a plan

    def refusal(self) -> Reason | None:
        """Why no graph may run now, or None."""
        if self._plans:
            plan = self._plans.get(threading.get_ident())
            if plan is not None and getattr(plan, "_comfy_active", True):
                return reasons.MemoryPlanned()
        if self._captures and torch.cuda.is_current_stream_capturing():
            return reasons.CallCaptured()
        return None
