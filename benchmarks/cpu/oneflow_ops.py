"""Time OneFlow's operations on the CPU, plain and as the backend lowers them: `python benchmarks/cpu/oneflow_ops.py`.

Each pair computes the same values and is timed in turns within one run, because machines are noisy; the best of
`--rounds` rounds counts, milliseconds per call. `with ones` spreads the narrow operand by a matrix product with ones
first, the usual way around slow broadcasts. Prints a table and writes build/benchmarks/oneflow_ops.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "benchmarks"
Variants = dict[str, Callable[[], Any]]


def cases(ops: Any, table: Any) -> dict[str, Variants]:
    """Name -> variants, among them `plain` and `lowered`. Half a million values each, as in a UNet at 64x64."""
    flow, c = ops.library.flow, ops.c
    add, norm, layer = (table[f"aten.{n}"] for n in ("add.Tensor", "group_norm.default", "layer_norm.default"))
    image, tokens = flow.randn(2, 64, 64, 64), flow.randn(2, 4096, 64)
    channel, column = flow.randn(64), flow.randn(2, 4096, 1)
    kernel, ones = flow.randn(64, 64, 3, 3), flow.ones(1, 64)
    geometry = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}

    def spread_channel() -> Any:
        wide = c.matmul(c.reshape(channel, [64, 1]), flow.ones(1, 4096))
        return image + c.reshape(wide, [1, 64, 64, 64])

    def plain_group_norm() -> Any:
        x = c.reshape(image, [2, 32, -1])
        centred = x - flow.mean(x, dim=2, keepdim=True)
        scaled = centred * c.rsqrt(flow.mean(centred * centred, dim=2, keepdim=True) + 1e-5)
        y = c.reshape(scaled, [2, 64, -1]) * c.reshape(channel, [1, 64, 1]) + c.reshape(channel, [1, 64, 1])
        return c.reshape(y, [2, 64, 64, 64])

    def plain_layer_norm() -> Any:
        centred = tokens - flow.mean(tokens, dim=2, keepdim=True)
        scale = c.rsqrt(flow.mean(centred * centred, dim=2, keepdim=True) + 1e-5)
        return centred * scale * channel + channel

    return {
        "bias over pixels": {
            "plain": lambda: c.bias_add(image, channel, axis=1),
            "with ones": spread_channel,
            "lowered": lambda: add(ops, image, c.reshape(channel, [1, 64, 1, 1])),
        },
        "column over rows": {
            "plain": lambda: tokens + column,
            "with ones": lambda: tokens + c.matmul(column, ones),
            "lowered": lambda: add(ops, tokens, column),
        },
        "convolution 3x3 with bias": {
            "plain": lambda: c.conv2d(image, kernel, channel, **geometry),
            "lowered": lambda: table["aten.conv2d.default"](ops, image, kernel, channel, [1, 1], [1, 1]),
        },
        "group norm": {"plain": plain_group_norm, "lowered": lambda: norm(ops, image, 32, channel, channel)},
        "layer norm": {"plain": plain_layer_norm, "lowered": lambda: layer(ops, tokens, [64], channel, channel)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="OneFlow's operations, plain and as lowered.")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    from onegraph.backends.oneflow import library
    from onegraph.backends.oneflow.lowering import TABLE, Ops

    oneflow = library.load()
    rows: list[dict[str, Any]] = []
    for name, variants in cases(Ops(oneflow, "cpu"), TABLE).items():
        reference = oneflow.to_torch(variants["plain"]())
        best: dict[str, float] = dict.fromkeys(variants, float("inf"))
        difference = 0.0
        for variant in variants.values():
            result = oneflow.to_torch(variant())
            difference = max(difference, float((result - reference).norm() / reference.norm()))
        for _ in range(options.rounds):
            for label, variant in variants.items():
                started = time.perf_counter()
                variant()
                oneflow.sync()
                best[label] = min(best[label], 1e3 * (time.perf_counter() - started))
        rows.append({"case": name, "ms": {k: round(v, 3) for k, v in best.items()}, "rel_l2": difference})
    report = {"rounds": options.rounds, "oneflow": library.VERSION, "machine": platform.machine(), "rows": rows}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "oneflow_ops.json").write_text(json.dumps(report, indent=1) + "\n")
    table = Table("operation", "plain ms", "with ones ms", "lowered ms", "plain / lowered", "relative L2")
    for row in rows:
        ms = row["ms"]
        table.add_row(
            row["case"],
            f"{ms['plain']:.2f}",
            f"{ms['with ones']:.2f}" if "with ones" in ms else "",
            f"{ms['lowered']:.2f}",
            f"{ms['plain'] / ms['lowered']:.1f}",
            f"{row['rel_l2']:.1e}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
