"""What is changed of diffusers while a block is captured, in the compiling process only."""

from __future__ import annotations

from ..compiler.blocks.capture import Settings
from .library_weights import plain_block


def settings() -> Settings:
    """How diffusers' blocks are captured: as they stand, with torch's own attention, and products of torchao's."""
    return Settings(plain=plain_block)
