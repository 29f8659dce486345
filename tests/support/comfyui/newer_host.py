"""What newer releases of ComfyUI have, for tests against one that lacks it.

What the host has itself is left as it is: the same tests tell of a newer host which name went.
"""

from __future__ import annotations

import functools
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ..models import toy_prefixes

PLANS = (0, 34)  # memory plans
PREFERENCES = (0, 37)  # functions that layers prefer, and Qwen-Image 2.1
OVERRIDE = "optimized_attention_override"
CPU = torch.device("cpu")


def version() -> tuple[int, ...]:
    """The host's, without the last number."""
    import comfyui_version

    return tuple(int(part) for part in comfyui_version.__version__.split(".")[:2])


class ComfyAttention(torch.nn.Module):
    """What a layer attends by.

    Attributes:
        function: that its checkpoint names; None: the host's choice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.function: Any = None


class Recorded:
    """What comfy-aimdo has recorded of a thread's allocations, without any."""

    _comfy_active: bool
    _comfy_cuda_graph_modules: Any
    rogue_count = 0

    def push(self, name: str | None = None) -> None: ...

    def pop(self) -> bool:
        return False


def put(patch: pytest.MonkeyPatch) -> None:
    """Put into the host what it lacks."""
    _put_plans(patch)
    if version() < PREFERENCES:
        _put_preferences(patch)


def _put_plans(patch: pytest.MonkeyPatch) -> None:
    from comfy import model_prefetch
    from comfy.cli_args import args

    if version() >= PLANS:
        return
    plans: dict[int, Any] = {}

    def enabled(device: Any) -> bool:
        return not args.disable_comfy_compiler

    def begin(device: Any) -> None:
        if enabled(device):
            plans.setdefault(threading.get_ident(), SimpleNamespace())._comfy_active = True

    def end() -> None:
        plan = plans.get(threading.get_ident())
        if plan is not None:
            plan._comfy_active = False

    patch.setattr(args, "disable_comfy_compiler", False, raising=False)
    patch.setattr(model_prefetch, "MALLOC_GRAPHS", plans, raising=False)
    patch.setattr(model_prefetch, "malloc_graph_enabled", enabled, raising=False)
    patch.setattr(model_prefetch, "malloc_graph_begin", begin, raising=False)
    patch.setattr(model_prefetch, "malloc_graph_end", end, raising=False)


def plan_on_any_device(patch: pytest.MonkeyPatch) -> None:
    """Have the host's own plans, which are for CUDA, begin and end on this machine, too."""
    if version() < PLANS:
        return
    import comfy_aimdo.malloc_graph
    from comfy import memory_management, model_management

    patch.setattr(comfy_aimdo.malloc_graph, "record", lambda *args: Recorded())
    patch.setattr(memory_management, "aimdo_enabled", True)
    patch.setattr(model_management, "is_device_cuda", lambda device: True)
    patch.setattr(model_management, "current_stream", lambda device: None)


def _put_preferences(patch: pytest.MonkeyPatch) -> None:
    from comfy.ldm.modules import attention

    from ..models import preferring

    chosen = attention.optimized_attention
    for name in ("attention_basic", "attention_sub_quad", "attention_split", "attention_pytorch"):
        function = getattr(attention, name)
        patch.setattr(attention, name, _preferring(function))
        for module in (attention, preferring) if function is chosen else ():
            patch.setattr(module, "optimized_attention", getattr(attention, name))
    patch.setattr(attention, "ComfyAttention", ComfyAttention, raising=False)


def _preferring(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, preferred_attention: Any = None, **kwargs: Any) -> Any:
        preferred = getattr(preferred_attention, "function", None)
        if preferred is None or OVERRIDE in (kwargs.get("transformer_options") or {}):
            return function(*args, **kwargs)
        return preferred(*args, **kwargs)

    return wrapper


def qwen_image_21_block() -> type[torch.nn.Module]:
    """The class of Qwen-Image 2.1's blocks; where the host has none, that of the toy which calls its blocks so."""
    if version() < PREFERENCES:
        return toy_prefixes.Block
    from comfy.ldm.qwen_image21 import model

    found: type[torch.nn.Module] = model.QwenImage21TransformerBlock
    return found
