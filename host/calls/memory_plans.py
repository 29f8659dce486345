"""ComfyUI's own compiler, where it would record or replay what a block graph does."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ..comfyui import contract


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
