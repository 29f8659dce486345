"""Who samples a model: newer hosts keep that on the model itself, whose forward asks it for memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def stand_in(value: Any) -> Any:
    """What a model in the compiling process has in place of a ModelPatcher; None: `value` is none.

    Of the host's forwards that of Qwen-Image 2.1 asks it, for the free memory of a device.
    """
    from comfy import model_management
    from comfy.model_patcher import ModelPatcher

    if isinstance(value, ModelPatcher):
        return SimpleNamespace(get_free_memory=model_management.get_free_memory)
    return None
