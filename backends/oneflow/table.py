"""The table of lowerings, `ATen name -> function(ops, *args, **kwargs)`, and what all of them use.

Tensors here are OneFlow's lazy ones: sizes are known, values are not. What shapes this file on CPU, OneFlow 0.9.0:

* A broadcast is fast only in some forms, and 100 times slower than on equal shapes in all others, so operands are
  brought into a fast one first: see `fast_form`.
* `group_norm` exists for CUDA only and `layer_norm` on CPU ends the process, so both are written out. Every result
  has its own memory for good (see `memory`), so few and small results count as much as speed.
* A convolution's own bias takes a slow broadcast, so it is added afterwards.
* There are no kernels for float16 and bfloat16 on CPU except casts: see `refuse_half`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .library import Library

Tensor = Any  # a OneFlow tensor
Function = Callable[..., Any]
TABLE: dict[str, Function] = {}
_HALF = ("float16", "bfloat16")


def lowers(*names: str) -> Callable[[Function], Function]:
    """Register a function for these operations (`aten.` and `.default` are understood)."""

    def register(function: Function) -> Function:
        for name in names:
            TABLE[full_name(name)] = function
        return function

    return register


def full_name(name: str) -> str:
    """Complete the name of an operation of ATen; other namespaces stay.

    >>> full_name("relu"), full_name("add.Tensor"), full_name("operator.mul")
    ('aten.relu.default', 'aten.add.Tensor', 'operator.mul')
    """
    if name.startswith(("operator.", "math.", "torch.")):
        return name
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


class Ops:
    """What a lowering may use: OneFlow's functions `c`, and tensors made on the graph's device."""

    def __init__(self, library: Library, device: str) -> None:
        self.library = library
        self.device = device
        self.c = library.functional

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.library.tensor_type)

    def constant(self, shape: Sequence[int], value: float, dtype: Any) -> Tensor:
        return self.c.constant(list(shape), value, dtype=dtype, device=self.device)

    def cast(self, x: Tensor, dtype: Any) -> Tensor:
        return x if x.dtype == dtype else self.c.cast(x, dtype=dtype, pin_memory=False)

    def mean(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        """Take the mean over `dims`, which stay with size 1."""
        return self.library.flow.mean(x, dim=list(dims), keepdim=True)

    def is_float(self, dtype: Any) -> bool:
        return any(dtype == self.library.dtype(name) for name in ("float32", "float64", *_HALF))

    def is_half(self, dtype: Any) -> bool:
        return any(dtype == self.library.dtype(name) for name in _HALF)

    def refuse_half(self, value: Any) -> str | None:
        """Say why an operation's result cannot be computed here, or None."""
        if self.device == "cpu" and self.is_tensor(value) and self.is_half(value.dtype):
            return f"OneFlow has no {str(value.dtype).removeprefix('oneflow.')} kernels for the CPU"
        return None


def rank(x: Tensor) -> int:
    return len(x.shape)


def fast_form(wide: Sequence[int], narrow: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """Return the shapes under which `narrow` broadcasts fast to `wide`, which has as many axes.

    None where it does so as it is, or in no form that is known.

    Fast are [N, C, a, b] with [N or 1, C, 1, 1], four axes and no fewer, and [N, L] with [1, L]. Slow are [M, L] with
    [M, 1], [N, C, L] with [1, C, 1] and [N, C, H, W] with [1, C, H, W]: 23 ms instead of 0.1 for half a million values.

    >>> fast_form([2, 8, 64], [1, 8, 1])
    ([2, 8, 64, 1], [1, 8, 1, 1])
    """
    if len(wide) == 4 and narrow[1] == wide[1] and narrow[0] in (1, wide[0]) and narrow[2] == narrow[3] == 1:
        return None
    runs: list[list[int]] = []  # [size, 1 if `narrow` is broadcast there], neighbours of one kind joined
    for size, narrow_size in zip(wide, narrow, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == (narrow_size == 1):
            runs[-1][0] *= size
        else:
            runs.append([size, narrow_size == 1])
    sizes, kinds = [size for size, _ in runs], [bool(kind) for _, kind in runs]
    if kinds == [True, False] and len(wide) > 3:
        return sizes, [1, sizes[1]]
    if kinds == [False, True]:
        return [1, *sizes, 1], [1, sizes[0], 1, 1]
    if kinds == [True, False, True]:
        return [*sizes, 1], [1, sizes[1], 1, 1]
    return None


def combine(ops: Ops, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """function(a, b) with torch's broadcasting, in a form that is fast where one of them has the result's shape."""
    if not (ops.is_tensor(a) and ops.is_tensor(b)):
        return function(a, b)
    shapes = [[1] * (max(rank(a), rank(b)) - rank(t)) + list(t.shape) for t in (a, b)]
    wide = [max(sizes) for sizes in zip(*shapes, strict=True)]
    if wide not in shapes or shapes[0] == shapes[1]:
        return function(a, b)
    form = fast_form(wide, shapes[1] if shapes[0] == wide else shapes[0])
    if form is None:
        return function(a, b)
    forms = form if shapes[0] == wide else form[::-1]
    a, b = (ops.c.reshape(t, shape) for t, shape in zip((a, b), forms, strict=True))
    return ops.c.reshape(function(a, b), wide)
