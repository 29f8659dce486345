"""Attention by the kernel that torch calls on a GPU, chosen without it: torch asks the driver, in C++, at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from . import attention_choice

_WIDEST_FLASH, _WIDEST_CUDNN = 256, 128  # elements of a head


class ExplicitAttention(TorchFunctionMode):
    """While it lasts, torch's own attention calls such a kernel. The function's name stands for torch's, as ever: what
    a model's code refers to is recorded.

    Args:
        capability: of the GPU.
        has_flash: whether torch there has FlashAttention; its wheels for Windows have none.
    """

    def __init__(self, capability: tuple[int, int], has_flash: bool = True) -> None:
        super().__init__()
        self._attention = _explicit(capability, has_flash)

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        chosen = self._attention if func is torch.nn.functional.scaled_dot_product_attention else func
        return chosen(*args, **(kwargs or {}))


def _explicit(capability: tuple[int, int], has_flash: bool) -> Callable[..., torch.Tensor]:
    """A function in place of torch's own, with the same arguments."""
    aten = torch.ops.aten
    cudnn_first = attention_choice.by_capability(capability[0])

    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
        width = query.shape[-1]
        result: torch.Tensor
        if query.dtype in (torch.float16, torch.bfloat16) and attn_mask is None and not width % 8:
            if cudnn_first and width <= _WIDEST_CUDNN:
                result = aten._scaled_dot_product_cudnn_attention.default(
                    query, key, value, None, False, dropout_p, is_causal, False, scale=scale
                )[0]
                return result
            if has_flash and width <= _WIDEST_FLASH:
                result = aten._scaled_dot_product_flash_attention.default(
                    query, key, value, dropout_p, is_causal, False, scale=scale
                )[0]
                return result
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
            attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
        result = aten._scaled_dot_product_efficient_attention.default(
            query, key, value, attn_mask, False, dropout_p, is_causal, scale=scale
        )[0]
        return result

    return scaled_dot_product_attention
