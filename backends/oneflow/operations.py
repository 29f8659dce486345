"""Lowerings of operations on values, shapes and sizes, and of constants."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from .table import TABLE, Function, Ops, Tensor, combine, full_name, lowers, rank


@lowers("add.Tensor", "add.Scalar")
def add(ops: Ops, a: Any, b: Any, alpha: float = 1) -> Tensor:
    return combine(ops, operator.add, a, b if alpha == 1 else b * alpha)


@lowers("sub.Tensor", "sub.Scalar")
def _sub(ops: Ops, a: Any, b: Any, alpha: float = 1) -> Tensor:
    return combine(ops, operator.sub, a, b if alpha == 1 else b * alpha)


@lowers("mul.Tensor", "mul.Scalar")
def _mul(ops: Ops, a: Any, b: Any) -> Tensor:
    return combine(ops, operator.mul, a, b)


@lowers("div.Tensor", "div.Scalar")
def _div(ops: Ops, a: Any, b: Any) -> Tensor:
    return combine(ops, operator.truediv, a, b)


@lowers("pow.Tensor_Scalar")
def _pow(ops: Ops, x: Tensor, exponent: float) -> Tensor:
    return ops.c.pow(x, exponent)


@lowers("neg")
def _neg(ops: Ops, x: Tensor) -> Tensor:
    return ops.c.negative(x)


def _same_name(name: str) -> Function:
    return lambda ops, x: getattr(ops.c, name)(x)


_SAME_NAMES = (
    "abs", "cos", "erf", "exp", "log", "logical_not", "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "sin", "sqrt",
    "tanh",
)  # fmt: skip
TABLE.update({full_name(name): _same_name(name) for name in _SAME_NAMES})


@lowers("gelu")
def _gelu(ops: Ops, x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return ops.c.gelu(x)
    return 0.5 * x * (1 + ops.c.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


@lowers("clamp")
def _clamp(ops: Ops, x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    return ops.c.clamp(x, low, high)


@lowers("clamp_min")
def _clamp_min(ops: Ops, x: Tensor, low: float) -> Tensor:
    return ops.c.clamp(x, low, None)


@lowers("eq.Scalar")
def _eq(ops: Ops, x: Tensor, value: float) -> Tensor:
    return ops.library.flow.eq(x, value)


@lowers("any.dim")
def _any(ops: Ops, x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return ops.c.reduce_any(x, [dim % rank(x)], keepdim)


@lowers("where.self")
def _where(ops: Ops, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return ops.c.where(condition, a, b)


# Shapes and copies --------------------------------------------------------------------------------------------


@lowers("view", "reshape", "_unsafe_view")
def view(ops: Ops, x: Tensor, shape: Sequence[int]) -> Tensor:
    specified = -math.prod(shape) if -1 in shape else 1
    wanted = [math.prod(x.shape) // specified if s == -1 else s for s in shape]
    return x if wanted == list(x.shape) else ops.c.reshape(x, wanted)


@lowers("flatten.using_ints")
def _flatten(ops: Ops, x: Tensor, start: int = 0, end: int = -1) -> Tensor:
    shape, start, end = list(x.shape), start % rank(x), end % rank(x)
    return ops.c.reshape(x, [*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]])


@lowers("permute")
def _permute(ops: Ops, x: Tensor, dims: Sequence[int]) -> Tensor:
    return ops.c.permute(x, [d % rank(x) for d in dims])


@lowers("transpose.int")
def _transpose(ops: Ops, x: Tensor, a: int, b: int) -> Tensor:
    return ops.c.transpose(x, dim0=a % rank(x), dim1=b % rank(x))


@lowers("t")
def _t(ops: Ops, x: Tensor) -> Tensor:
    return x if rank(x) < 2 else ops.c.transpose(x, dim0=0, dim1=1)


@lowers("expand")
def _expand(ops: Ops, x: Tensor, shape: Sequence[int], implicit: bool = False) -> Tensor:
    new = len(shape) - rank(x)
    wanted = [x.shape[i - new] if s == -1 else s for i, s in enumerate(shape)]
    return x if wanted == list(x.shape) else ops.c.expand(x, wanted)


@lowers("unsqueeze")
def _unsqueeze(ops: Ops, x: Tensor, dim: int) -> Tensor:
    return ops.c.unsqueeze(x, dim % (rank(x) + 1))


@lowers("squeeze.dim", "squeeze.dims")
def _squeeze(ops: Ops, x: Tensor, dims: int | Sequence[int]) -> Tensor:
    chosen = {d % rank(x) for d in ([dims] if isinstance(dims, int) else dims)}
    return ops.c.reshape(x, [s for i, s in enumerate(x.shape) if not (i in chosen and s == 1)])


@lowers("clone", "contiguous", "alias", "detach", "lift_fresh_copy", "dropout")
def _same(ops: Ops, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


@lowers("_assert_tensor_metadata", "sym_constrain_range_for_size", "sym_constrain_range")
def _nothing(ops: Ops, *_: Any, **__: Any) -> None:
    return None


@lowers("_assert_scalar")
def _assert_scalar(ops: Ops, condition: bool, message: str = "") -> None:
    if not condition:
        raise ValueError(message or "a size is outside the captured range")


@lowers("to.dtype", "_to_copy")
def _to(ops: Ops, x: Tensor, dtype: Any = None, *_: Any, **__: Any) -> Tensor:
    return x if dtype is None else ops.cast(x, dtype)


@lowers("cat")
def _cat(ops: Ops, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return ops.c.concat(list(tensors), dim % rank(tensors[0]))


@lowers("split_with_sizes")
def _split(ops: Ops, x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [ops.c.narrow(x, dim % rank(x), start, size) for start, size in zip(starts, sizes, strict=True)]


@lowers("chunk")
def _chunk(ops: Ops, x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    return list(ops.c.chunk(x, chunks, dim % rank(x)))


@lowers("slice.Tensor")
def _slice(
    ops: Ops, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    dim %= rank(x)
    first, last, step = slice(start, end, step).indices(x.shape[dim])
    last = max(first, last)
    if (first, last, step) == (0, x.shape[dim], 1):
        return x
    if step == 1:
        return ops.c.narrow(x, dim, first, last - first)
    starts, ends, steps = [0] * rank(x), list(x.shape), [1] * rank(x)
    starts[dim], ends[dim], steps[dim] = first, last, step
    return ops.c.slice(x, start=starts, stop=ends, step=steps)


@lowers("select.int")
def _select(ops: Ops, x: Tensor, dim: int, index: int) -> Tensor:
    return ops.c.select(x, dim % rank(x), index)


@lowers("constant_pad_nd", "pad")
def _pad(ops: Ops, x: Tensor, pad: Sequence[int], *rest: Any, value: float | None = None) -> Tensor:
    names = [g for g in rest if isinstance(g, str)]
    numbers = [g for g in rest if isinstance(g, int | float)]
    if names and names[0] != "constant":
        raise NotImplementedError(f"padding mode {names[0]}")
    return ops.c.pad(x, list(pad), mode="constant", value=value or (numbers[0] if numbers else 0))


@lowers("upsample_nearest2d.vec")
def _upsample(ops: Ops, x: Tensor, size: Sequence[int] | None, scales: Sequence[float] | None) -> Tensor:
    height, width = x.shape[2], x.shape[3]
    if size is None:
        assert scales is not None
        size = [int(height * scales[0]), int(width * scales[1])]
    return ops.c.upsample_nearest_2d(
        x,
        height_scale=size[0] / height,
        width_scale=size[1] / width,
        output_size=list(size),
        data_format="channels_first",
    )


# Constants ----------------------------------------------------------------------------------------------------


@lowers("full_like")
def _full_like(ops: Ops, x: Tensor, value: float, dtype: Any = None, **_: Any) -> Tensor:
    return ops.constant(x.shape, value, dtype or x.dtype)


@lowers("full")
def _full(ops: Ops, shape: Sequence[int], value: float, dtype: Any = None, **_: Any) -> Tensor:
    kind = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
    return ops.constant(shape, value, dtype or ops.library.dtype(kind))


@lowers("arange", "arange.start", "arange.start_step")
def _arange(ops: Ops, *bounds: float, dtype: Any = None, **_: Any) -> Tensor:
    start, end, step = (*((0, *bounds) if len(bounds) == 1 else bounds), 1)[:3]
    kind = "int64" if all(isinstance(b, int) for b in bounds) else "float32"
    return ops.c.arange(start, end, step, dtype=dtype or ops.library.dtype(kind), device=ops.device)


# Sizes --------------------------------------------------------------------------------------------------------


@lowers("sym_size.int")
def _sym_size(ops: Ops, x: Tensor, dim: int) -> int:
    return int(x.shape[dim])


@lowers("operator.getitem")
def _getitem(ops: Ops, values: Sequence[Any], index: int) -> Any:
    return values[index]


def _on_sizes(function: Callable[..., Any]) -> Function:
    return lambda ops, *sizes: function(*sizes)


_ON_SIZES = (
    "add", "sub", "mul", "floordiv", "mod", "truediv", "neg", "pow", "eq", "ne", "lt", "le", "gt", "ge", "and_",
)  # fmt: skip
TABLE.update({f"operator.{name}": _on_sizes(getattr(operator, name)) for name in _ON_SIZES})
TABLE.update({f"math.{name}": _on_sizes(getattr(math, name)) for name in ("trunc", "ceil", "floor")})
TABLE.update({
    "torch.sym_float": _on_sizes(float), "torch.sym_not": _on_sizes(operator.not_),
    "torch.sym_max": _on_sizes(max), "torch.sym_min": _on_sizes(min),
})  # fmt: skip
