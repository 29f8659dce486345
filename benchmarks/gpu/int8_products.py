"""What an int8 Linear's product costs on this GPU: comfy-kitchen's, cuBLASLt's, and two kernels in Triton.

`python -m benchmarks.gpu.int8_products --out FILE`, with comfy-kitchen and Triton; no ComfyUI. The shapes are Z-Image's
at 1024x1024. Eight weights of each shape take turns, so that none is in the card's cache as it would not be in a model.
Times are microseconds a product, both scales applied and rounded to bfloat16 but for cuBLASLt's, which gives int32.

The kernels are no part of the pack. Alone they are faster than comfy-kitchen's product, and inside of Z-Image's blocks
the first was not (see docs/benchmarks.md): a product alone does not show what a card's power allows.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

ROWS = 4192
SHAPES = ((3840, 11520), (3840, 3840), (3840, 10240), (10240, 3840))  # depth, columns
WEIGHTS, ROUNDS = 8, 12
# Rows, columns and depth of a tile, warps, stages, and rows of tiles that are computed together.
POINTERS = ((128, 128, 128, 8, 3, 8), (128, 128, 128, 8, 3, 64), (128, 256, 128, 8, 3, 64))
DESCRIPTORS = ((128, 256, 128, 8, 3, 8), (128, 256, 128, 8, 3, 64), (256, 128, 128, 8, 3, 64))


@triton.jit  # type: ignore[untyped-decorator]
def _at(tile, rows, columns, tile_rows: tl.constexpr, tile_columns: tl.constexpr, group: tl.constexpr):  # type: ignore[no-untyped-def]
    """First row and first column of a tile."""
    per_group = group * tl.cdiv(columns, tile_columns)
    first = tile // per_group * group
    height = min(tl.cdiv(rows, tile_rows) - first, group)
    return (first + tile % per_group % height) * tile_rows, tile % per_group // height * tile_columns


@triton.jit  # type: ignore[untyped-decorator]
def by_pointers(  # type: ignore[no-untyped-def]
    x, weight, row_scales, column_scales, result, rows, columns, depth, _processors,
    tile_rows: tl.constexpr, tile_columns: tl.constexpr, tile_depth: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    top, side = _at(tl.program_id(0), rows, columns, tile_rows, tile_columns, group)
    row, column = top + tl.arange(0, tile_rows), side + tl.arange(0, tile_columns)
    # Beyond the last one the first is read, and not written: no mask in the loop.
    row_read, column_read = tl.where(row < rows, row, 0), tl.where(column < columns, column, 0)
    along = tl.arange(0, tile_depth)
    left = x + row_read[:, None] * depth + along[None, :]
    right = weight + column_read[None, :] * depth + along[:, None]
    sums = tl.zeros((tile_rows, tile_columns), tl.int32)
    for _ in range(0, depth, tile_depth):
        sums = tl.dot(tl.load(left), tl.load(right), sums, out_dtype=tl.int32)
        left += tile_depth
        right += tile_depth
    product = sums.to(tl.float32) * (
        tl.load(row_scales + row_read)[:, None] * tl.load(column_scales + column_read)[None, :]
    )
    where = result + row[:, None] * columns + column[None, :]
    tl.store(where, product.to(tl.bfloat16), mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def by_descriptors(  # type: ignore[no-untyped-def]
    x, weight, row_scales, column_scales, result, rows, columns, depth, processors: tl.constexpr,
    tile_rows: tl.constexpr, tile_columns: tl.constexpr, tile_depth: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    left = tl.make_tensor_descriptor(x, [rows, depth], [depth, 1], [tile_rows, tile_depth])
    right = tl.make_tensor_descriptor(weight, [columns, depth], [depth, 1], [tile_columns, tile_depth])
    written = tl.make_tensor_descriptor(result, [rows, columns], [columns, 1], [tile_rows, tile_columns])
    tiles = tl.cdiv(rows, tile_rows) * tl.cdiv(columns, tile_columns)
    for tile in tl.range(tl.program_id(0), tiles, processors, flatten=True):
        top, side = _at(tile, rows, columns, tile_rows, tile_columns, group)
        sums = tl.zeros((tile_rows, tile_columns), tl.int32)
        for at in range(tl.cdiv(depth, tile_depth)):
            at_depth = at * tile_depth
            sums = tl.dot(left.load([top, at_depth]), right.load([side, at_depth]).T, sums, out_dtype=tl.int32)
        row, column = top + tl.arange(0, tile_rows), side + tl.arange(0, tile_columns)
        row_scale = tl.load(row_scales + row, mask=row < rows)
        column_scale = tl.load(column_scales + column, mask=column < columns)
        product = sums.to(tl.float32) * (row_scale[:, None] * column_scale[None, :])
        written.store([top, side], product.to(tl.bfloat16))


def microseconds(calls: Sequence[Callable[[], Any]]) -> float:
    """Of one of the calls, taken in turns."""
    for call in calls:
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(ROUNDS):
        for call in calls:
            call()
    end.record()
    torch.cuda.synchronize()
    return round(float(start.elapsed_time(end)) * 1e3 / ROUNDS / len(calls), 1)


def measured(depth: int, columns: int) -> dict[str, float]:
    """Microseconds by way, for one shape. Raises AssertionError where a kernel's result is another one."""
    import comfy_kitchen

    assert comfy_kitchen
    torch.manual_seed(0)
    kitchen: Any = torch.ops.comfy_kitchen
    x = torch.randn(ROWS, depth, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randint(-127, 128, (columns, depth), device="cuda", dtype=torch.int8) for _ in range(WEIGHTS)]
    scale = torch.rand(columns, 1, device="cuda") * 1e-3
    values, scales = kitchen.quantize_int8_rowwise(x)
    processors = torch.cuda.get_device_properties(0).multi_processor_count

    def by(kernel: Any, weight: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        tile_rows, tile_columns, tile_depth, warps, stages, group = shape
        result = torch.empty(ROWS, columns, device="cuda", dtype=torch.bfloat16)
        tiles = triton.cdiv(ROWS, tile_rows) * triton.cdiv(columns, tile_columns)
        kernel[(tiles if kernel is by_pointers else processors,)](
            values, weight, scales, scale, result, ROWS, columns, depth, processors,
            tile_rows, tile_columns, tile_depth, group, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return result

    wanted = (torch._int_mm(values, weights[0].t()).float() * (scales * scale.t())).bfloat16()
    quantiser = microseconds([lambda: kitchen.quantize_int8_rowwise(x)] * WEIGHTS)
    whole = microseconds([lambda w=w: kitchen.int8_linear(x, w, scale, None, 2, False, 256) for w in weights])
    row = {"comfy-kitchen": round(whole - quantiser, 1), "its quantiser": quantiser}
    row["cuBLASLt, int32"] = microseconds([lambda w=w: torch._int_mm(values, w.t()) for w in weights])
    for kernel, shapes in ((by_pointers, POINTERS), (by_descriptors, DESCRIPTORS)):
        for shape in shapes:
            torch.testing.assert_close(by(kernel, weights[0], shape), wanted)
            name = f"{kernel.__name__} {' '.join(map(str, shape))}"
            row[name] = microseconds([functools.partial(by, kernel, w, shape) for w in weights])
    return row


def main() -> None:
    """Print a table, and write the JSON file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    machine = [torch.cuda.get_device_name(), torch.__version__, triton.__version__]
    rows = {f"{ROWS} x {depth} x {columns}": measured(depth, columns) for depth, columns in SHAPES}
    print(*machine, *(f"{shape}: {row}" for shape, row in rows.items()), sep="\n")
    if given.out:
        given.out.write_text(json.dumps({"machine": machine, "microseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
