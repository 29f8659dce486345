"""The text of a module's attribute where that is configuration: what two equal modules have in common."""

from __future__ import annotations

from typing import Any

import torch

_SCALARS = (bool, int, float, str, type(None), torch.dtype)


def describe(value: Any) -> str | None:
    """Return a stable text for a plain value, or None for what is no configuration (modules, tensors, caches)."""
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, tuple | list | torch.Size):
        parts = [describe(v) for v in value]
        return None if None in parts else f"[{','.join(p for p in parts if p is not None)}]"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    return None
