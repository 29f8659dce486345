"""Lowerings of reductions, norms, matrix products, attention and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .operations import add, view
from .table import Ops, Tensor, lowers, rank

# Reductions and norms -----------------------------------------------------------------------------------------


@lowers("mean.dim")
def _mean(ops: Ops, x: Tensor, dims: Sequence[int], keepdim: bool = False, **_: Any) -> Tensor:
    chosen = sorted(d % rank(x) for d in dims)
    kept = ops.mean(x, chosen)
    return kept if keepdim else ops.c.reshape(kept, [s for i, s in enumerate(x.shape) if i not in chosen])


@lowers("softmax.int", "_softmax")
def _softmax(ops: Ops, x: Tensor, dim: int, *_: Any) -> Tensor:
    return ops.c.softmax(x, dim)


@lowers("group_norm")
def _group_norm(
    ops: Ops,
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Tensor:
    """Statistics in float32. Each channel's factor and offset come first, so its pixels are read once more."""
    shape, dtype = list(x.shape), x.dtype
    batch, channels, *space = shape
    x = ops.cast(x, ops.library.dtype("float32")) if ops.is_half(dtype) else x
    if rank(x) != 4:
        x = ops.c.reshape(x, [batch, channels, math.prod(space), 1])
    height, width = list(x.shape)[2:]
    grouped = ops.c.reshape(x, [batch, groups, channels // groups * height, width])
    mean = ops.mean(grouped, [2, 3])
    centred = grouped - mean
    scale = ops.c.rsqrt(ops.mean(centred * centred, [2, 3]) + eps)

    def per_channel(statistic: Tensor) -> Tensor:
        wide = ops.c.expand(ops.c.reshape(statistic, [batch, groups, 1]), [batch, groups, channels // groups])
        return ops.c.reshape(wide, [batch, channels, 1, 1])

    factor, offset = per_channel(scale), per_channel(ops.c.negative(mean * scale))
    if weight is not None:
        row = ops.c.reshape(ops.cast(weight, x.dtype), [1, channels, 1, 1])
        factor, offset = factor * row, offset * row
    if bias is not None:
        offset = offset + ops.c.reshape(ops.cast(bias, x.dtype), [1, channels, 1, 1])
    return ops.cast(view(ops, x * factor + offset, shape), dtype)


@lowers("native_group_norm")
def _native_group_norm(
    ops: Ops, x: Tensor, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int, eps: float
) -> list[Tensor | None]:
    return [_group_norm(ops, x, groups, weight, bias, eps), None, None]


@lowers("layer_norm")
def _layer_norm(
    ops: Ops,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Tensor:
    """Statistics in float32. Columns are spread by products with a row, which is the weight where it can be."""
    input_shape, dtype, length = list(x.shape), x.dtype, math.prod(shape)
    x = ops.cast(x, ops.library.dtype("float32")) if ops.is_half(dtype) else x
    x = view(ops, x, [*input_shape[: rank(x) - len(shape)], length])
    ones = ops.constant([1, length], 1.0, x.dtype)
    centred = x - ops.c.matmul(ops.mean(x, [rank(x) - 1]), ones)
    scale = ops.c.rsqrt(ops.mean(centred * centred, [rank(x) - 1]) + eps)
    row = ones if weight is None else ops.c.reshape(ops.cast(weight, x.dtype), [1, length])
    y = centred * ops.c.matmul(scale, row)
    if bias is not None:
        y = y + ops.c.reshape(ops.cast(bias, x.dtype), [length])
    return ops.cast(view(ops, y, input_shape), dtype)


@lowers("native_layer_norm")
def _native_layer_norm(
    ops: Ops, x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> list[Tensor | None]:
    return [_layer_norm(ops, x, shape, weight, bias, eps), None, None]


# Products -----------------------------------------------------------------------------------------------------


@lowers("mm", "matmul")
def _matmul(ops: Ops, a: Tensor, b: Tensor) -> Tensor:
    return ops.c.matmul(a, b)


@lowers("bmm")
def _bmm(ops: Ops, a: Tensor, b: Tensor) -> Tensor:
    return ops.c.batch_matmul(a, b)


@lowers("addmm")
def _addmm(ops: Ops, bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    y = ops.c.matmul(a, b)
    return (y if alpha == 1 else y * alpha) + (bias if beta == 1 else bias * beta)


@lowers("baddbmm")
def _baddbmm(ops: Ops, bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    y = ops.c.batch_matmul(a, b)
    y = y if alpha == 1 else y * alpha
    return y if beta == 0 else add(ops, y, bias if beta == 1 else bias * beta)


@lowers("linear")
def _linear(ops: Ops, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = ops.c.matmul(x, weight, transpose_b=True)
    return y if bias is None else y + bias


@lowers("scaled_dot_product_attention")
def _attention(
    ops: Ops,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q k^T scale + mask) v with all scores in memory at once; a causal or grouped one is refused."""
    if causal or enable_gqa or dropout:
        raise NotImplementedError("attention that is causal, grouped or has dropout")
    scores = ops.c.matmul(q * (scale or 1.0 / math.sqrt(q.shape[-1])), k, transpose_b=True)
    if mask is not None:
        if not ops.is_float(mask.dtype):
            raise NotImplementedError("attention with a mask of truth values")
        scores = add(ops, scores, mask)
    return ops.c.matmul(ops.c.softmax(scores, -1), v)


@lowers("conv2d")
def _conv2d(
    ops: Ops,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    y = ops.c.conv2d(
        x, weight, None, stride=list(stride), padding=list(padding), dilation=list(dilation), groups=groups
    )
    return y if bias is None else add(ops, y, ops.c.reshape(bias, [1, -1, 1, 1]))


@lowers("convolution")
def _convolution(
    ops: Ops,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    if transposed or rank(weight) != 4:
        raise NotImplementedError("a convolution that is transposed or not over two dimensions")
    return _conv2d(ops, x, weight, bias, stride, padding, dilation, groups)
