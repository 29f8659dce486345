"""Each lowering against torch's operation of the same name, on OneFlow's eager tensors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from onegraph.backends.oneflow import OneFlowBackend, library, lowering
from onegraph.backends.oneflow.table import Ops, fast_form

HERE = OneFlowBackend().can_run(torch.device("cpu"))
needs_oneflow = pytest.mark.skipif(not HERE.ok, reason=HERE.text)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


X, POSITIVE = random(2, 6, 4, 5), random(2, 6, 4, 5).abs() + 0.1
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((f"{n}.default", (X,), {}) for n in ("abs", "cos", "erf", "exp", "neg", "relu")),
    *((f"{n}.default", (X,), {}) for n in ("sigmoid", "silu", "sin", "tanh")),
    *((f"{n}.default", (POSITIVE,), {}) for n in ("log", "reciprocal", "rsqrt", "sqrt")),
    *((f"{n}.Tensor", (X, POSITIVE), {}) for n in ("add", "sub", "mul", "div")),
    *((f"{n}.Tensor", (X, 3.0), {}) for n in ("add", "sub", "mul", "div")),
    ("add.Tensor", (X, POSITIVE), {"alpha": 2}),
    ("sub.Tensor", (X, POSITIVE), {"alpha": 0.5}),
    ("pow.Tensor_Scalar", (POSITIVE, 1.5), {}),
    ("gelu.default", (X,), {}),
    ("gelu.default", (X,), {"approximate": "tanh"}),
    ("clamp.default", (X, -0.5, 0.5), {}),
    ("clamp_min.default", (X, 0.1), {}),
    ("view.default", (X, [2, -1, 5]), {}),
    ("_unsafe_view.default", (X, [48, 5]), {}),
    ("flatten.using_ints", (X, 1, 2), {}),
    ("permute.default", (X, [0, -1, 1, 2]), {}),
    ("transpose.int", (X, 1, -1), {}),
    ("t.default", (random(3, 4),), {}),
    ("expand.default", (random(1, 6, 1, 5), [2, -1, 4, 5]), {}),
    ("unsqueeze.default", (X, -1), {}),
    ("squeeze.dims", (random(1, 3, 1), [0, 2]), {}),
    ("squeeze.dim", (random(1, 3, 1), -1), {}),
    ("clone.default", (X,), {}),
    ("cat.default", ([X, POSITIVE], -1), {}),
    ("slice.Tensor", (X, 1, 1, 9223372036854775807), {}),
    ("slice.Tensor", (X, 3, 0, -1, 2), {}),
    ("select.int", (X, 1, 2), {}),
    ("constant_pad_nd.default", (X, [0, 1, 2, 1]), {}),
    ("constant_pad_nd.default", (X, [1, 1], 3.0), {}),
    ("upsample_nearest2d.vec", (X, [8, 10], None), {}),
    ("upsample_nearest2d.vec", (X, [7, 13], None), {}),
    ("upsample_nearest2d.vec", (X, None, [2.0, 2.0]), {}),
    ("mean.dim", (X, [-1, 1]), {}),
    ("mean.dim", (X, [2], True), {}),
    ("_softmax.default", (X, -1, False), {}),
    ("group_norm.default", (X, 3, random(6), random(6, seed=1), 1e-5), {}),
    ("group_norm.default", (X + 5, 2), {}),
    ("group_norm.default", (random(2, 6, 7), 2, random(6)), {}),
    ("layer_norm.default", (X, [5], random(5), random(5, seed=1), 1e-5), {}),
    ("layer_norm.default", (X + 5, [4, 5]), {}),
    ("mm.default", (random(3, 4), random(4, 5)), {}),
    ("matmul.default", (X, random(5, 3)), {}),
    ("bmm.default", (random(2, 3, 4), random(2, 4, 5)), {}),
    ("addmm.default", (random(5), random(3, 4), random(4, 5)), {"alpha": 2, "beta": 0.5}),
    ("baddbmm.default", (random(2, 3, 5), random(2, 3, 4), random(2, 4, 5)), {}),
    ("linear.default", (X, random(7, 5), random(7)), {}),
    ("linear.default", (random(3, 5), random(7, 5)), {}),
    ("scaled_dot_product_attention.default", (X, X + 1, POSITIVE), {}),
    ("scaled_dot_product_attention.default", (X, X, X, random(4, 4)), {"scale": 0.7}),
    ("conv2d.default", (X, random(8, 6, 3, 3), random(8), [2, 2], [1, 1]), {}),
    ("conv2d.default", (X, random(6, 1, 3, 3), None, [1, 1], [0, 1], [1, 2], 6), {}),
    ("convolution.default", (X, random(8, 6, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {}),
    ("full_like.default", (X, 2.5), {}),
    ("full.default", ([2, 3], 2.5), {}),
    ("arange.start_step", (0, 16), {}),
    ("arange.default", (7,), {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def ops() -> Ops:
    return Ops(library.load(), "cpu")


def call(ops: Ops, name: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    def shared(value: Any) -> Any:
        if isinstance(value, list):
            return [shared(v) for v in value]
        return ops.library.share(value.contiguous()) if isinstance(value, torch.Tensor) else value

    return ops.library.to_torch(lowering.TABLE[f"aten.{name}"](ops, *map(shared, args), **kwargs).contiguous())


def aten(name: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    packet, overload = name.split(".")
    result: torch.Tensor = getattr(getattr(torch.ops.aten, packet), overload)(*args, **kwargs)
    return result


@needs_oneflow
@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS, ids=[f"{i}-{c[0]}" for i, c in enumerate(CALLS)])
def test_each_operation_is_torchs(name: str, args: Any, kwargs: Any, ops: Ops) -> None:
    expected = aten(name, *args, **kwargs)
    torch.testing.assert_close(call(ops, name, *args, **kwargs), expected.contiguous(), rtol=2e-5, atol=2e-6)


@needs_oneflow
@pytest.mark.parametrize(
    "wide", [(2, 6, 4, 5), (1, 6, 4, 5), (2, 6, 5), (1, 6, 5), (6, 5), (5,), (2, 3, 4, 5, 6), (2, 6, 1, 1)]
)
def test_every_broadcast_is_torchs(wide: tuple[int, ...], ops: Ops) -> None:
    for narrow in itertools.product(*((1, size) for size in wide)):
        a, b = random(*wide), random(*narrow).abs() + 0.1
        for name, pair in (("add.Tensor", (a, b)), ("sub.Tensor", (b, a)), ("div.Tensor", (a, b.squeeze(0)))):
            torch.testing.assert_close(call(ops, name, *pair), aten(name, *pair))


def test_slow_broadcasts_are_brought_into_a_fast_form() -> None:
    assert fast_form((2, 64, 8, 8), (1, 64, 1, 1)) is None
    assert fast_form((2, 64, 8, 8), (2, 64, 1, 1)) is None
    assert fast_form((128, 96), (1, 96)) is None
    assert fast_form((128, 96), (128, 1)) == ([1, 128, 96, 1], [1, 128, 1, 1])
    assert fast_form((2, 64, 96), (1, 64, 1)) == ([2, 64, 96, 1], [1, 64, 1, 1])
    assert fast_form((2, 8, 77, 64), (2, 8, 77, 1)) == ([1, 1232, 64, 1], [1, 1232, 1, 1])
    assert fast_form((2, 64, 8, 8), (1, 64, 8, 8)) == ([2, 4096], [1, 4096])


@needs_oneflow
@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("pad.default", (X, [1, 1], "reflect"), {}),
        ("scaled_dot_product_attention.default", (X, X, X), {"causal": True}),
        ("scaled_dot_product_attention.default", (X, X, X, torch.ones(4, 4, dtype=torch.int32)), {}),
        ("convolution.default", (X, X, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1), {}),
    ],
)
def test_variants_without_a_lowering_raise(name: str, args: Any, kwargs: Any, ops: Ops) -> None:
    with pytest.raises(NotImplementedError):
        call(ops, name, *args, **kwargs)
