"""What the Inductor backend makes of operations on a GPU, computed here: the same as torch's own, at all sizes."""

from __future__ import annotations

import pytest
import torch

from onegraph.backends.inductor.decompositions import double_by_copies, group_norm, wide_attention


@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 4, 6)])
@pytest.mark.parametrize("affine", [True, False])
def test_the_group_norm_for_gpus_is_a_group_norm(shape: tuple[int, ...], affine: bool) -> None:
    x = 3 * torch.randn(shape) + 5
    weight, bias = (torch.randn(shape[1]), torch.randn(shape[1])) if affine else (None, None)
    result, mean, rstd = group_norm(x, weight, bias, shape[0], shape[1], x[0, 0].numel(), 2, 1e-5)
    wanted = torch.native_group_norm(x, weight, bias, shape[0], shape[1], x[0, 0].numel(), 2, 1e-5)
    for one, other in zip((result, mean, rstd), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mean", [0.0, 300.0])
@pytest.mark.parametrize("outlier", [0.0, 1e3])
def test_group_norm_for_gpus_is_exact_beside_outliers(mean: float, outlier: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 4, 96, 80) + mean
    x[0, :, 0, 0] += outlier
    given = (None, None, 1, 4, 96 * 80, 2, 1e-6)
    wanted = torch.native_group_norm(x.double(), *given)[0]
    ours, torchs = (
        float((result[0].double() - wanted).norm() / wanted.norm())
        for result in (group_norm(x, *given), torch.native_group_norm(x, *given))
    )
    print(f"relative L2 {ours:.1e}, torch's {torchs:.1e}")
    assert ours < max(4 * torchs, 1e-6)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = wide_attention(query, key, value, None, False)[0]
    return result


def _heads(rows: int, size: float = 1.0) -> list[torch.Tensor]:
    return [size * torch.randn(2, 1, rows, 512).to(torch.bfloat16) for _ in range(3)]


def _error(result: torch.Tensor, heads: list[torch.Tensor]) -> float:
    exact = torch.nn.functional.scaled_dot_product_attention(*(t.double() for t in heads))
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("traced_at", [64, 100])
def test_wide_attention_traced_once_fits_all_sizes(traced_at: int) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.manual_seed(0)
    traced = make_fx(_attend, tracing_mode="symbolic")(*_heads(traced_at))
    for rows in (1, 2, 4, 7, 8, 9, 64, 100, 131):
        heads = _heads(rows)
        assert _error(traced(*heads), heads) < 4e-3, rows


@pytest.mark.parametrize("size", [1e-18, 1e-3, 1e3, 1e18])
def test_wide_attention_does_not_overflow_like_float16(size: float) -> None:
    torch.manual_seed(0)
    query, key, value = _heads(40)
    heads = [query * size, key / size, value]  # scores as before, from numbers that float16 has not
    assert _error(_attend(*heads), heads) < 4e-3
    heads = [query * min(size, 30.0), key, value]
    assert torch.isfinite(_attend(*heads)).all()


def test_other_attention_is_left_to_torch() -> None:
    query, key, value = _heads(8)
    assert wide_attention(query[..., :256], key[..., :256], value[..., :256], None, False) is NotImplemented
    assert wide_attention(query.float(), key.float(), value.float(), None, False) is NotImplemented
    assert wide_attention(query, key, value, torch.zeros(8, 8), False) is NotImplemented
    assert wide_attention(query, key, value, None, True) is NotImplemented
    assert wide_attention(query, key, value, None, False, 0.0, True) is NotImplemented


class _Upsampled(torch.nn.Module):
    def __init__(self, factor: int, by_size: bool) -> None:
        super().__init__()
        self.factor, self.by_size = factor, by_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2:]
        if self.by_size:
            size = (self.factor * height, self.factor * width)
            return torch.nn.functional.interpolate(x, size=size, mode="nearest") + 1
        return torch.nn.functional.interpolate(x, scale_factor=float(self.factor), mode="nearest") + 1


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("factor", [2, 3])
def test_only_doubling_is_written_as_copies(factor: int, by_size: bool) -> None:
    module = _Upsampled(factor, by_size)
    height, width = (torch.export.Dim(name, min=2, max=64) for name in ("height", "width"))
    exported = torch.export.export(
        module, (torch.zeros(2, 3, 4, 6),), strict=False, dynamic_shapes=({2: height, 3: width},)
    )
    double_by_copies(exported)
    left = exported.graph.find_nodes(op="call_function", target=torch.ops.aten.upsample_nearest2d.vec)
    assert len(left) == (factor == 3)
    for shape in ((2, 3, 5, 7), (2, 3, 64, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(exported.module()(x), module(x), rtol=0, atol=0)
