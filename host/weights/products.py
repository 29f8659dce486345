"""Products with weights that functions of the host multiply by, not its layers, while they are captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ...common.replaced import replaced
from ...common.torch_private import scaled_product
from ..comfyui import contract
from .formats.int8 import Int8Linear


@contextlib.contextmanager
def products() -> Iterator[None]:
    """Have all of them captured as what an eager call computes. In the compiling process."""
    with activated_products(), float8_products():
        yield


@contextlib.contextmanager
def activated_products() -> Iterator[None]:
    """Have int8 layers compute an activation of their input on the way, where the host has its own do so.

    The host asks for its own weights there. A plain layer has others, and the activation would be computed apart, with
    another rounding before the quantiser.
    """
    if contract.missing(contract.ACTIVATED):
        yield
        return
    import comfy.ops

    before = comfy.ops.linear_input_act

    def linear_input_act(linear: Any, x: torch.Tensor, input_act: str) -> Any:
        if isinstance(linear, Int8Linear):
            return linear.activated(x, input_act)
        return before(linear, x, input_act)

    with replaced(comfy.ops, "linear_input_act", linear_input_act):
        yield


@contextlib.contextmanager
def float8_products() -> Iterator[None]:
    """Have layers with weights in float8 multiply as the host's do that quantise their input (--fast fp8_matrix_mult).

    The host multiplies tensors of comfy-kitchen's there, which no capture can follow. Its layers then take the way of a
    failed product, and multiply by the cast weight.
    """
    if contract.missing(contract.FAST):
        yield
        return
    import comfy.ops

    with replaced(comfy.ops, "fp8_linear", _float8_linear):
        yield


def _float8_linear(layer: Any, x: torch.Tensor) -> torch.Tensor | None:
    """What `fp8_linear` gives for an input [tokens, width] or [batch, tokens, width]; None: the weight is cast."""
    if layer.weight.dtype != torch.float8_e4m3fn or x.ndim not in (2, 3):
        return None
    flat, one = x.reshape(-1, x.shape[-1]), torch.ones((), dtype=torch.float32, device=x.device)
    flat = flat.clamp_(-448, 448)  # in place, as the host does
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    product = scaled_product(flat.to(layer.weight.dtype).contiguous(), layer.weight.t(), one, one, bias, x.dtype)
    return product.reshape(*x.shape[:-1], product.shape[-1])
