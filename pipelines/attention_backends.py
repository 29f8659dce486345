"""diffusers' choice of attention kernels, of which graphs have torch's own."""

from __future__ import annotations

import sys
from typing import Any

from ..common import reasons
from ..common.reasons import Reason

ATTRIBUTE = "_attention_backend"  # of a processor that may have one of its own, as `set_attention_backend` gives it
USUAL = "native"


def of(processor: Any) -> str | None:
    """The backend of a processor's own; None where it has none and computes with the one that is turned on for all."""
    backend = getattr(processor, ATTRIBUTE, None)
    return None if backend is None else str(getattr(backend, "value", backend))


def follows(processor: Any) -> bool:
    """Whether a processor computes with the backend that is turned on for all models."""
    return hasattr(type(processor), ATTRIBUTE) and of(processor) is None


def refusal() -> Reason | None:
    """Why no graph computes as the backend that is turned on for all models, or None.

    `attention_backend` turns one on for a while, `set_attention_backend` of any model and `DIFFUSERS_ATTN_BACKEND` for
    good.
    """
    module = sys.modules.get("diffusers.models.attention_dispatch")
    active = getattr(getattr(module, "_AttentionBackendRegistry", None), "_active_backend", None)
    name = USUAL if active is None else str(getattr(active, "value", active))
    return None if name == USUAL else reasons.AttentionBackend(name)
