"""Small diffusion transformers whose layers are ComfyUI's own quantised ones, loaded as from a file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from . import dits


@dataclass(frozen=True)
class Quantised:
    """A format as files have it.

    Attributes:
        format: by the host's name.
        layout: comfy-kitchen's.
        how: arguments of the host's quantisation.
        file: what a file says of a layer, besides the format.
        emulated: whether the host takes the device for one that cannot multiply such values.
    """

    format: str
    layout: str
    how: Mapping[str, Any] = field(default_factory=dict)
    file: Mapping[str, Any] = field(default_factory=dict)
    emulated: bool = False


_FP8 = {"scale": "recalculate"}
_CONVROT = {"convrot": True, "convrot_groupsize": 64}
_ROTATED = {"convrot_groupsize": 64}
_W4A8 = {**_ROTATED, "linear_dtype": "int8"}
FORMATS = {
    "fp8 scaled": Quantised("float8_e4m3fn", "TensorCoreFP8E4M3Layout", _FP8),
    "fp8 scaled, emulated": Quantised("float8_e4m3fn", "TensorCoreFP8E4M3Layout", _FP8, emulated=True),
    "fp8 e5m2": Quantised("float8_e5m2", "TensorCoreFP8E5M2Layout", _FP8, emulated=True),
    "int8": Quantised("int8_tensorwise", "TensorWiseINT8Layout"),
    "int8 convrot": Quantised("int8_tensorwise", "TensorWiseINT8Layout", {"per_channel": True, **_CONVROT}, _CONVROT),
    "convrot w4a4": Quantised("convrot_w4a4", "TensorCoreConvRotW4A4Layout", _ROTATED, _ROTATED),
    "convrot w4a8": Quantised("convrot_w4a4", "TensorCoreConvRotW4A4Layout", _W4A8, _W4A8),
    "mxfp8": Quantised("mxfp8", "TensorCoreMXFP8Layout"),
    "mxfp8, emulated": Quantised("mxfp8", "TensorCoreMXFP8Layout", emulated=True),
    "nvfp4": Quantised("nvfp4", "TensorCoreNVFP4Layout", _FP8),
    "nvfp4, emulated": Quantised("nvfp4", "TensorCoreNVFP4Layout", _FP8, emulated=True),
}


@contextlib.contextmanager
def products_of_blocks() -> Iterator[None]:
    """Have comfy-kitchen multiply mxfp8 and nvfp4 as it does where a device fails to: dequantised, the input, too.

    It does so at errors of some types. A CPU's is of another one, which ends eager calls, too.
    """
    import comfy_kitchen

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("this device has no such product")

    names = ("scaled_mm_mxfp8", "scaled_mm_nvfp4")
    before = {name: getattr(comfy_kitchen, name) for name in names}
    try:
        for name in names:
            setattr(comfy_kitchen, name, failing)
        yield
    finally:
        for name, function in before.items():
            setattr(comfy_kitchen, name, function)


def load(
    name: str,
    kind: str,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | None = None,
    **unet: Any,
) -> Any:
    """A MODEL of a family whose blocks have layers of a format; `unet` overrides its sizes."""
    from comfy.ops import mixed_precision_ops

    wanted, model = FORMATS[kind], dits.load(name, seed, dtype, device, **unet)
    module = model.model.diffusion_model
    ops = mixed_precision_ops({}, dtype, disabled={wanted.format} if wanted.emulated else set())
    for path, layer in [*module.named_modules()]:
        if isinstance(layer, torch.nn.Linear) and ("blocks." in path or "layers." in path or "refiner." in path):
            if layer.in_features % wanted.how.get("convrot_groupsize", 1):
                continue  # no whole groups: files have such layers in 16 bits
            parent, _, last = path.rpartition(".")
            setattr(module.get_submodule(parent), last, quantised(layer, wanted, ops))
    return model


def stored(name: str, seed: int = 0, dtype: torch.dtype = torch.bfloat16, operations: str = "manual_cast") -> Any:
    """A MODEL of a family whose layers have plain weights of float8, which the host casts at each use.

    Args:
        operations: name of the host's; `fp8_ops` multiplies them as they are where it can.
    """
    import comfy.ops

    ops, model = getattr(comfy.ops, operations), dits.load(name, seed, dtype)
    module = model.model.diffusion_model
    for path, layer in [*module.named_modules()]:
        if isinstance(layer, torch.nn.Linear):
            parent, _, last = path.rpartition(".")
            setattr(module.get_submodule(parent), last, in_float8(layer, ops))
    return model


def in_float8(layer: torch.nn.Linear, ops: Any) -> torch.nn.Module:
    """A layer of the host's operations with a layer's weights, stored in float8 without a scale."""
    sizes = layer.in_features, layer.out_features, layer.bias is not None
    made: torch.nn.Module = ops.Linear(*sizes, device="cpu", dtype=layer.weight.dtype)
    made.load_state_dict(layer.state_dict())
    made.weight = torch.nn.Parameter(layer.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    return made.eval()


def quantised(layer: torch.nn.Linear, wanted: Quantised, ops: Any, **more: torch.Tensor) -> torch.nn.Module:
    """The host's layer of a format with a layer's weights. `more`: further tensors of the file."""
    from comfy.quant_ops import QuantizedTensor

    dtype = layer.weight.dtype
    weight = QuantizedTensor.from_float(layer.weight.data, wanted.layout, **wanted.how)
    sizes = layer.in_features, layer.out_features, layer.bias is not None
    made: Any = ops.Linear(*sizes, device=layer.weight.device, dtype=dtype)
    said = json.dumps({"format": wanted.format, **wanted.file}).encode()
    state = {**weight.state_dict("weight"), "comfy_quant": torch.tensor([*said], dtype=torch.uint8), **more}
    if layer.bias is not None:
        state["bias"] = layer.bias.data
    made.load_state_dict(state, strict=False)
    found: torch.nn.Module = made.eval()
    return found
