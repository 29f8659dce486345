"""A small text model with a real tokenizer, without a file: whatever it writes is nonsense, and always the same."""

from __future__ import annotations

from .declared import integer, loaded, node

texts = loaded("onegraph_test_texts", "tests", "support", "comfyui", "texts.py")


@node("SmallText", "CLIP", seed=integer(0, min=0))
def load(seed):
    """A small Qwen 3."""
    return texts.load("qwen 3 with words", seed=seed)
