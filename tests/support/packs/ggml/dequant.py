"""Types of quantisation, by diffusers' functions."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.quantizers.gguf.utils import GGML_QUANT_SIZES, dequantize_functions
from gguf import GGMLQuantizationType

PLAIN = (None, GGMLQuantizationType.F32, GGMLQuantizationType.F16)


def is_quantized(tensor: Any) -> bool:
    return tensor is not None and getattr(tensor, "tensor_type", None) not in PLAIN


def dequantize_tensor(tensor: Any, dtype: Any = None, dequant_dtype: Any = None) -> Any:
    kind = getattr(tensor, "tensor_type", None)
    if kind in PLAIN:
        return tensor.to(dtype)
    size, length = GGML_QUANT_SIZES[kind]
    blocks = tensor.data.view(torch.uint8).reshape(-1, length)
    values = dequantize_functions[kind](blocks, size, length, dtype=dequant_dtype)
    return values.reshape(tensor.tensor_shape).to(dtype)
