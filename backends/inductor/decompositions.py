"""What the Inductor backend makes of some operations on a GPU: ATen operations in place of the compiler's own ways.

Each is right for all sizes of a graph, and measured on an H200; the backend decides where they are used.
"""

from __future__ import annotations

from typing import Any

import torch

_WIDEST_FUSED = 256  # channels of a head that torch's fast attention kernels take
_ATTENTION_PIECES = 8  # of the queries: at 2048x2048 a VAE's scores take 2 GiB instead of 16


def group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """aten.native_group_norm by way of each channel's own mean and variance: (result, mean, 1 / deviation).

    torch's own decomposition reduces over a group as one view, whose indices are divided by sizes known only at run
    time, for each element: 88 instead of 28 ms for a VAE of any size on an H200. Sums of differences from a value close
    to the mean, the first row's mean, are as exact as its running means, which take a division for each element.
    """
    whole = x.float()
    pixel_dims = list(range(2, x.ndim))
    row = (whole[:, :, :1] if x.ndim > 3 else whole).mean(pixel_dims, keepdim=True)
    apart = whole - row
    shifts, squares = apart.mean(pixel_dims), apart.square().mean(pixel_dims)
    means = (row.reshape(x.shape[:2]) + shifts).view(x.shape[0], groups, -1)
    variances = (squares - shifts.square()).clamp(min=0).view(x.shape[0], groups, -1)
    mean = means.mean(-1, keepdim=True)
    variance = variances.mean(-1, keepdim=True) + (means - mean).square().mean(-1, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    scale = rstd.expand_as(means).reshape(x.shape[:2])
    middle = mean.expand_as(means).reshape(x.shape[:2])
    if weight is not None:
        scale = scale * weight.float()
    pixel = [1] * (x.ndim - 2)
    result = (whole - middle.view(*x.shape[:2], *pixel)) * scale.view(*x.shape[:2], *pixel)
    if bias is not None:
        result = result + bias.float().view(1, -1, *pixel)
    return result.to(x.dtype), mean.squeeze(-1).to(x.dtype), rstd.squeeze(-1).to(x.dtype)


def wide_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """aten._scaled_dot_product_efficient_attention of wide heads by way of two matrix products, in pieces.

    A VAE attends with one head of 512 channels, too wide for FlashAttention and cuDNN; for its 16384 pixels torch's
    own kernel takes 3.7 ms on an H200. The scores between the two products are in float16, which rounds eight times
    finer than bfloat16 and cannot overflow, because each query is first divided by its largest element, and the keys
    by theirs.
    """
    width, rows = query.shape[-1], query.shape[-2]
    plain = bias is None and not compute_log_sumexp and not is_causal and dropout_p == 0.0
    if not plain or width <= _WIDEST_FUSED or query.dtype not in (torch.float16, torch.bfloat16):
        return NotImplemented
    scale = width**-0.5 if scale is None else scale
    queries, query_sizes = _divided(query.flatten(0, 1), -1)
    keys, key_size = _divided(key.flatten(0, 1), (-2, -1))
    values = value.flatten(0, 1)
    # Nothing here may ask whether the number of rows is divisible or a piece is one row: the answer would be compiled
    # in for all sizes. So each piece has two rows at least, and there always are some too many.
    each = rows // _ATTENTION_PIECES + 2
    too_many = [0, 0, 0, _ATTENTION_PIECES * each - rows]
    split = (
        torch.constant_pad_nd(t, too_many).reshape(-1, _ATTENTION_PIECES, each, t.shape[-1]).unbind(1)
        for t in (queries, query_sizes * (key_size * scale))
    )
    results = []
    for piece, sizes in zip(*split, strict=True):
        # Pieces must not read the same rows of anything here: the compiler would take all their softmaxes together,
        # which is slower and keeps all scores at once.
        scores = torch.bmm(piece, keys.transpose(1, 2)).float() * sizes
        results.append(torch.bmm(torch.softmax(scores, -1).to(values.dtype), values))
    result = torch.cat(results, 1)[:, :rows].reshape(*query.shape[:-1], value.shape[-1])
    log_sumexp = query.new_empty((*query.shape[:2], 0), dtype=torch.float32)
    seed = torch.empty((), dtype=torch.int64, device=query.device)
    return result, log_sumexp, seed, seed


def _divided(vectors: torch.Tensor, dims: int | tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors in float16, divided by the largest element along `dims`, and those elements in float32."""
    whole = vectors.float()
    largest = whole.abs().amax(dims, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return (whole / largest).half(), largest


def double_by_copies(exported: torch.export.ExportedProgram) -> None:
    """Write upsampling to twice the size, nearest pixel, as an expansion.

    The compiler's own way computes each pixel's source with floating-point products of run-time sizes: 1.5 ms for the
    largest one in a VAE of any size on an H200, 0.3 ms where sizes are fixed. Channels go last, as convolutions want
    them there.
    """
    graph = exported.graph
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.upsample_nearest2d.vec):
        source = node.args[0]
        small, large = source.meta["val"], node.meta["val"]
        if any(str(2 * small.shape[dim]) != str(large.shape[dim]) for dim in (2, 3)):
            continue
        steps = (
            (aten.permute.default, [0, 2, 3, 1]),
            (aten.unsqueeze.default, 2),
            (aten.unsqueeze.default, 4),
            (aten.expand.default, [-1, -1, 2, -1, 2, -1]),
            (aten.flatten.using_ints, 3, 4),
            (aten.flatten.using_ints, 1, 2),
            (aten.permute.default, [0, 3, 1, 2]),
        )
        with graph.inserting_before(node):
            for target, *rest in steps:
                value = target(source.meta["val"], *rest)
                source = graph.call_function(target, (source, *rest))
                source.meta.update(node.meta, val=value)
        node.replace_all_uses_with(source)
        graph.erase_node(node)
    exported.graph_module.recompile()
