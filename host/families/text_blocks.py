"""The blocks of ComfyUI's text encoders and decoders, which are given attention's keys and values of the tokens before.

A decoder hands each block tensors with room for the tokens to come, into which the block writes. To a graph they are
inputs whose length in use is a number, and the new token's keys and values are results: one graph serves all lengths.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from ...signature import views

_ATTENTION = "comfy.ldm.modules.attention"
_NAMES = ("attention_pytorch", "attention_basic", "attention_sub_quad")  # those of the host that texts are given
_FUNCTION = "optimized_attention"
_PAST = "past_key_value"
# Where the number in use is a tensor, so that all tokens' calls are one call: a step can be captured as a CUDA graph.
# Attention then reads all of the room, which a processor would wait for.
REPLAYED_ON = ("cuda",)
_GROWING = 2  # values that a graph is given of keys and values without room: their length tells how many there are
_NOTHING: tuple[()] = ()  # keys and values of no tokens
_BEYOND = "beyond window"  # an argument of calls whose tokens are more than attention reaches back to: another kind


class TextBlock:
    """Of blocks that are given the attention function: those of the host are told by their names."""

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        return {**named, _FUNCTION: _name_of(named[_FUNCTION])}

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        return self._called(block, {**opened, _FUNCTION: _named(opened[_FUNCTION])}), None

    def _called(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        cls: Any = type(block)
        return cls.forward(block, **{name: one for name, one in opened.items() if name not in (views.VIEWED, _BEYOND)})

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        return returned[0]

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        return result, None


class _Room:
    """Keys and values [B, heads, room, D] of the tokens before, and how many there are, as a tensor [1].

    Args:
        window: to how many tokens attention reaches back; 0: to all.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, count: torch.Tensor, window: int) -> None:
        self._keys, self._values, self._count, self._window = keys, values, count, window

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        heads: int,
        mask: None = None,
        skip_reshape: bool = True,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """As the host's functions of one query [B, heads, 1, D], the new token's, with all keys: [B, 1, heads * D].

        Sums in float32, by operations that a compiler makes one kernel of: none of torch's attentions takes a length
        that is a tensor, and some are chosen by whether the room is a multiple of 16.
        """
        place = torch.arange(self._keys.shape[2], device=q.device)
        after, new = (place > self._count)[:, None], (place == self._count)[:, None]
        keys, values = (
            torch.where(new, own, past.masked_fill(after, 0)).float()[:, :, None]  # what is after may be anything
            for own, past in ((k, self._keys), (v, self._values))
        )
        seen = place <= self._count
        if self._window:
            seen = seen & (place > self._count - self._window)
        grouped = q.reshape(q.shape[0], k.shape[1], -1, 1, q.shape[3]).float() * q.shape[3] ** -0.5  # by the key's head
        scores = (grouped * keys).sum(-1).masked_fill(~seen, float("-inf"))
        found = (torch.softmax(scores, dim=-1)[..., None] * values).sum(-2)
        return found.to(q.dtype).reshape(q.shape[0], 1, -1)


class DecoderBlock(TextBlock):
    """Of blocks that are given keys and values [B, heads, room, D] of so many tokens before, and fill in their own.

    Where there is no room, a block returns longer ones, and so does its graph. From ComfyUI 0.33 on, a block writes its
    result over what it is given, which its model does not read again: here the result is a tensor of its own.

    Args:
        window: the attribute of a block that tells to how many tokens its attention reaches back, where it has one.
    """

    def __init__(self, window: str = "") -> None:
        self._window = window

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        made, past = super().open(block, named), named[_PAST]
        window, new = self._reach(block), named["x"].shape[1]
        if window and new > window:
            made[_BEYOND] = True
        if not past:
            return made
        keys, values, count = past
        if not count:
            past = []
        elif new == 1 and self._one_call(keys, count, named, made):
            past = [keys, values, _count(count, keys.device, _stream(keys.device))]
        elif keys.shape[2] < count + new:
            if window or keys.shape[2] != count:
                raise TypeError("keys and values of other tokens")
            past = [keys, values]
        elif window and new == 1 and count + new > window:  # how many of the last, as a constant of the form
            past = [keys, values, count, 1 - window]
        else:
            past = [keys, values, count]
        return {**made, _PAST: past}

    def _called(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        return super()._called(block, {**opened, "x": opened["x"].clone()})

    def _reach(self, block: torch.nn.Module) -> int:
        return int(getattr(block, self._window, 0) or 0) if self._window else 0

    def _token(self, block: torch.nn.Module, opened: Mapping[str, Any], room: _Room) -> Any:
        """A token's call: the block is told of no tokens before, and its attention reads them besides the new one."""
        returned = self._called(block, {**opened, _PAST: _NOTHING, _FUNCTION: room.attention})
        result, (keys, values, _) = returned
        return result, (keys.contiguous(), values.contiguous())

    @staticmethod
    def _one_call(keys: torch.Tensor, count: int, named: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
        """Whether it is one of a token with room for it, and with an attention that `_Room` can stand in for."""
        room = keys.shape[2] > count and keys.device.type in REPLAYED_ON
        return room and named.get("attention_mask") is None and isinstance(made[_FUNCTION], str)

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        past = opened[_PAST]
        if past and isinstance(past[-1], torch.Tensor) and len(past) > _GROWING:
            keys, values, count = past
            return self._token(block, opened, _Room(keys, values, count, self._reach(block)))
        grows = past is not None and len(past) == _GROWING
        if grows:
            past = (*past, past[0].shape[2])
        elif past:
            keys, values, count, *last = past
            start, length = (count + last[0], -last[0]) if last else (0, count)
            past = (keys.narrow(2, start, length), values.narrow(2, start, length), length)
        (result, present), _ = super().call(block, {**opened, _PAST: past})
        if present is None or grows:
            return result, present and tuple(present[:2])
        return result, _last(present, opened["x"].shape[1])

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        result, new = returned
        if new is None:
            return result, None
        past, added = named[_PAST], named["x"].shape[1]
        if not past:
            return result, (*new, added)
        *kept, count = past
        if kept[0].shape[2] < count + added:
            return result, (*new, count + added)
        for one, more in zip(kept, new, strict=True):
            one[:, :, count : count + added] = more
        return result, (*kept, count + added)

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        returned, present = result
        if present is None:
            return returned, None
        *kept, count = present
        past = named[_PAST]
        if past and 0 < past[2] == past[0].shape[2]:  # it had no room
            return returned, tuple(kept)
        return returned, _last([one[:, :, :count] for one in kept], named["x"].shape[1])


class HybridBlock(DecoderBlock):
    """Of Qwen 3.5's blocks, most of which keep a state of their own in place of keys and values, and change it.

    These compute a prompt by a loop over its parts, as many as it has, which no graph stands for.
    """

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        past = named[_PAST]
        if _has_keys(block):
            return super().open(block, named)
        if not past or not past[2] or named["x"].shape[1] > 1:
            raise TypeError("a prompt")
        return {**TextBlock.open(self, block, named), _PAST: [*past[:2]]}

    @staticmethod
    def _one_call(keys: torch.Tensor, count: int, named: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
        return False  # the others' states are other tensors at each token

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        past = opened[_PAST]
        if not _has_keys(block):
            past = (*(one.clone() for one in past), 1)
            (result, present), _ = TextBlock.call(self, block, {**opened, _PAST: past})
            return result, tuple(present[:2])
        if past is not None and not past:  # the block takes three values apart
            nothing = opened["x"].new_zeros((1, 1, 0, 1))
            (result, present), _ = TextBlock.call(self, block, {**opened, _PAST: (nothing, nothing, 0)})
            return result, _last(present, opened["x"].shape[1])
        return super().call(block, opened)

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        if _has_keys(block):
            return super().close(block, named, returned)
        result, states = returned
        return result, (*states, named[_PAST][2] + 1)

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        if _has_keys(block):
            return super().open_result(block, named, result)
        return result[0], result[1][:2]


def _has_keys(block: torch.nn.Module) -> bool:
    return getattr(block, "layer_type", "") != "linear_attention"


class GrowingBlock(TextBlock):
    """Of Gemma 4's blocks, which are given keys and values of tokens before as they are, and return longer ones.

    Those that a block has attended to are a result, which the last blocks are given as they are (`shared_kv`).
    """

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        past, shared, new = named[_PAST], named["shared_kv"], named["x"].shape[1]
        made = {**named, _PAST: past if past is None else [*past[:2]]}
        keys = shared[0].shape[2] if shared else new + (past[0].shape[2] if past else 0)
        if self._window(block) and keys >= self._window(block):
            made[_BEYOND] = True
        return made

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        past = opened[_PAST]
        result, _, attended = self._called(block, {**opened, _PAST: (*past, past[0].shape[2]) if past else past})
        return result, attended

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        result, attended = returned
        past, window = named[_PAST], self._window(block)
        if past is None or attended is None:
            return result, None, attended
        kept = [one[:, :, 1 - window :] if window and one.shape[2] > window - 1 else one for one in attended]
        return result, (*kept, (past[2] if past else 0) + named["x"].shape[1]), attended

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        return result[0], result[2]

    @staticmethod
    def _window(block: torch.nn.Module) -> int:
        return int(getattr(block, "sliding_attention", 0))


@functools.lru_cache(maxsize=4)
def _count(count: int, device: torch.device, stream: int) -> torch.Tensor:
    """How many tokens there are, one tensor for all blocks of a step. `stream`: on which it is made and read."""
    return torch.full((1,), count, device=device)


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


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
    views.register("comfy.text_encoders.qwen35:Qwen35TransformerBlock", HybridBlock())
    views.register("comfy.text_encoders.gemma4:TransformerBlockGemma4", GrowingBlock())


def text_models(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The parts of a CLIP's model that call such blocks, by the prefixes of their weights' names."""
    return {
        f"{path}." if path else "": one
        for path, one in model.named_modules()
        if any(isinstance(list_, torch.nn.ModuleList) and _are_texts(list_) for list_ in one.children())
    }


def _are_texts(blocks: torch.nn.ModuleList) -> bool:
    return len(blocks) > 1 and isinstance(views.view_of(blocks[0]), TextBlock)
