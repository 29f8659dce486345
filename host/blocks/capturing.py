"""What is changed of ComfyUI while a block is captured, in the compiling process only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...compiler.blocks.capture import Settings
from ..families.family import attention


def settings() -> Settings:
    """How ComfyUI's blocks are captured: with torch's attention, and with rotary embeddings written in torch."""
    return Settings({"optimized_attention_override": attention}, _rewrites)


@contextlib.contextmanager
def _rewrites() -> Iterator[None]:
    with plain_rotations():
        yield


@contextlib.contextmanager
def plain_rotations() -> Iterator[None]:
    """Have comfy-kitchen's rotary operations computed by its own code of tensor operations.

    Its operations choose a kernel by the device and by addresses, which no capture can follow. Without comfy-kitchen
    the host's code is such code already.
    """
    try:
        import comfy_kitchen as kitchen
        from comfy_kitchen.backends.eager import rope
    except ImportError:
        yield
        return
    plain = {name: getattr(rope, name) for name in dir(rope) if "rope" in name and not name.startswith("_")}
    plain = {name: one for name, one in plain.items() if callable(one) and hasattr(kitchen, name)}
    before = {name: getattr(kitchen, name) for name in plain}
    check = getattr(rope, "check_rope_inplace", None)
    try:
        for name, function in plain.items():
            setattr(kitchen, name, function)
        if check is not None:
            rope.check_rope_inplace = lambda *args, **kwargs: None  # asks for addresses
        yield
    finally:
        for name, function in before.items():
            setattr(kitchen, name, function)
        if check is not None:
            rope.check_rope_inplace = check
