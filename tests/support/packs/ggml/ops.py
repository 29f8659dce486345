"""Layers whose weights are bytes, dequantised at each use."""

from __future__ import annotations

from typing import Any

import comfy.lora
import comfy.ops
import torch

from .dequant import dequantize_tensor, is_quantized


class GGMLTensor(torch.Tensor):
    """Bytes that know what they stand for."""

    def __new__(cls, data: Any, *, tensor_type: Any, tensor_shape: Any, patches: Any = ()) -> Any:
        return super().__new__(cls, data)

    def __init__(self, data: Any, *, tensor_type: Any, tensor_shape: Any, patches: Any = ()) -> None:
        self.tensor_type, self.tensor_shape, self.patches = tensor_type, tensor_shape, [*patches]

    def to(self, *args: Any, **kwargs: Any) -> Any:
        moved = super().to(*args, **kwargs)
        moved.tensor_type = getattr(self, "tensor_type", None)
        moved.tensor_shape = getattr(self, "tensor_shape", moved.size())
        moved.patches = [*getattr(self, "patches", ())]
        return moved

    def detach(self) -> Any:
        return self

    @property
    def shape(self) -> Any:
        return getattr(self, "tensor_shape", None) or self.size()


class GGMLLayer(torch.nn.Module):
    comfy_cast_weights = True
    dequant_dtype: Any = None
    patch_dtype: Any = None

    def get_weight(self, tensor: Any, dtype: Any) -> Any:
        weight = dequantize_tensor(tensor, dtype, self.dequant_dtype)
        if isinstance(weight, GGMLTensor):
            weight = torch.Tensor(weight)
        for patches, key in getattr(tensor, "patches", []):
            computed = () if self.patch_dtype is None else (self.patch_dtype,)
            weight = comfy.lora.calculate_weight(patches, weight, key, *computed)
        return weight

    def cast_bias_weight(self, input: Any = None, dtype: Any = None, device: Any = None, bias_dtype: Any = None) -> Any:
        if input is not None:
            dtype, device = dtype or input.dtype, device or input.device
        bias = self.bias
        if bias is not None:
            bias = self.get_weight(bias.to(device), dtype).to(bias_dtype or dtype)
        return self.get_weight(self.weight.to(device), dtype), bias

    def forward_comfy_cast_weights(self, input: Any) -> Any:
        if is_quantized(self.weight) or is_quantized(self.bias):
            weight, bias = self.cast_bias_weight(input)
            return torch.nn.functional.linear(input, weight, bias)
        out = super().forward_comfy_cast_weights(input)  # type: ignore[misc]
        return torch.Tensor(out) if isinstance(out, GGMLTensor) else out


class GGMLOps(comfy.ops.manual_cast):
    class Linear(GGMLLayer, comfy.ops.manual_cast.Linear):
        def __init__(self, in_features: int, out_features: int, bias: bool = True, **more: Any) -> None:
            torch.nn.Module.__init__(self)
            self.in_features, self.out_features = in_features, out_features
            self.weight = self.bias = None

    class Embedding(GGMLLayer, comfy.ops.manual_cast.Embedding):
        pass
