"""The blocks of ComfyUI's text encoders and decoders, which are given attention's keys and values of the tokens before.

A decoder hands each block tensors with room for the tokens to come, into which the block writes. To a graph they are
inputs whose length in use is a number, and the new token's keys and values are results: one graph serves all lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...signature import views

_ATTENTION = "comfy.ldm.modules.attention"
_NAMES = ("attention_pytorch", "attention_basic", "attention_sub_quad")  # those of the host that texts are given
_FUNCTION = "optimized_attention"
_PAST = "past_key_value"
_BEYOND = "beyond window"  # an argument of calls whose tokens are more than attention reaches back to: another kind


class TextBlock:
    """Of blocks that are given the attention function: those of the host are told by their names."""

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        return {**named, _FUNCTION: _name_of(named[_FUNCTION])}

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        cls: Any = type(block)
        named = {name: value for name, value in opened.items() if name not in (views.VIEWED, _BEYOND)}
        return cls.forward(block, **{**named, _FUNCTION: _named(named[_FUNCTION])}), None

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        return returned[0]

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        return result, None


class DecoderBlock(TextBlock):
    """Of blocks that are given keys and values [B, heads, room, D] of so many tokens before, and fill in their own.

    Args:
        window: the attribute of a block that tells to how many tokens its attention reaches back, where it has one.
    """

    def __init__(self, window: str = "") -> None:
        self._window = window

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        made, past = super().open(block, named), named[_PAST]
        window, new = getattr(block, self._window, 0) if self._window else 0, named["x"].shape[1]
        if window and new > window:
            made[_BEYOND] = True
        if not past:
            return made
        keys, values, count = past
        if not count:
            past = []
        elif window and new == 1 and count + new > window:  # how many of the last, as a constant of the form
            past = [keys, values, count, 1 - window]
        else:
            past = [keys, values, count]
        return {**made, _PAST: past}

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        past = opened[_PAST]
        if past:
            keys, values, count, *last = past
            start, length = (count + last[0], -last[0]) if last else (0, count)
            past = (keys.narrow(2, start, length), values.narrow(2, start, length), length)
        (result, present), _ = super().call(block, {**opened, _PAST: past})
        return result, None if present is None else _last(present, opened["x"].shape[1])

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        result, new = returned
        if new is None:
            return result, None
        past, added = named[_PAST], new[0].shape[2]
        if not past:
            return result, (*new, added)
        *kept, count = past
        if kept[0].shape[2] < count + added:
            kept = [torch.cat((one[:, :, :count], more), 2) for one, more in zip(kept, new, strict=True)]
        else:
            for one, more in zip(kept, new, strict=True):
                one[:, :, count : count + added] = more
        return result, (*kept, count + added)

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        returned, present = result
        if present is None:
            return returned, None
        *kept, count = present
        return returned, _last([one[:, :, :count] for one in kept], named["x"].shape[1])


def _last(kept: Any, count: Any) -> tuple[torch.Tensor, ...]:
    """The keys and the values of the last tokens."""
    keys, values, *_ = kept
    return tuple(one.narrow(2, one.shape[2] - count, count).contiguous().clone() for one in (keys, values))


def _name_of(function: Any) -> Any:
    """The name of an attention function of the host's; any other function as it is."""
    name = getattr(function, "__name__", "")
    return name if name in _NAMES and _named(name) is function else function


def _named(function: Any) -> Any:
    if not isinstance(function, str):
        return function
    from comfy.ldm.modules import attention

    return getattr(attention, function)


def register() -> None:
    """Have these blocks compiled."""
    views.register("comfy.clip_model:CLIPLayer", TextBlock())
    views.register("comfy.text_encoders.t5:T5Block", TextBlock())
    views.register("comfy.text_encoders.llama:TransformerBlock", DecoderBlock())
    views.register("comfy.text_encoders.llama:TransformerBlockGemma2", DecoderBlock("sliding_attention"))


def text_models(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The parts of a CLIP's model that call such blocks, by the prefixes of their weights' names."""
    return {
        f"{path}." if path else "": one
        for path, one in model.named_modules()
        if any(isinstance(list_, torch.nn.ModuleList) and _are_texts(list_) for list_ in one.children())
    }


def _are_texts(blocks: torch.nn.ModuleList) -> bool:
    return len(blocks) > 1 and isinstance(views.view_of(blocks[0]), TextBlock)
