"""The one table of `benchmarks/gpu`: a column for each way to run, a row for each call or cost."""

from __future__ import annotations

from typing import Any

from .common import SDXL_TFLOP, Bench

WAYS = ("eager", "eager as CUDA graph", "torch.compile", "any size", "any size, replayed", "exact")
_CALL = ("eager_ms", "eager_graph_ms", "torch_compile_ms", "any_size_ms", "replayed_ms", "exact_ms")
_SECTION: dict[str, tuple[str, ...]] = {  # a row's name -> the section's figure for each way
    "replayed whether it pays or not, ms": ("", "", "", "", "replay_ms", "replay_exact_ms"),
    "compile, s": ("", "", "torch_compile_cold_s", "compile_s", "", "compile_exact_s"),
    "in a new process, s": ("", "", "torch_compile_warm_s", "restore_s", "", "restore_exact_s"),
    "the same where a thread was ahead, s": ("", "", "", "preloaded_s", "", ""),
    "relative L2 to float32": ("rel_l2_eager", "", "", "rel_l2", "rel_l2_replay", "rel_l2_exact"),
    "peak VRAM / eager": ("", "", "", "peak_vram_ratio", "", "peak_vram_ratio_exact"),
    "graph on disk, bytes": ("", "", "", "artifact_bytes", "", "artifact_exact_bytes"),
}


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else ""


def _add(table: Any, name: str, values: list[Any]) -> None:
    if any(value is not None for value in values):
        table.add_row(name, *(_shown(value) for value in values))


def table(bench: Bench) -> Any:
    """All figures of the run, and of earlier runs into the same file."""
    from rich.table import Table

    result = bench.result
    made = Table(title=f"{result.get('device')}, torch {result.get('torch')}", caption=_caption(result))
    made.add_column("")
    for way in WAYS:
        made.add_column(way, justify="right")
    keys = {bench.model: bench.unet_key(bench.model), bench.refiner: bench.unet_key(bench.refiner)}
    keys |= {f"vae_{part}": bench.vae_key(part) for part in ("decode", "encode")}
    for part, key in keys.items():
        section = result.get(key, {})
        for row in (row for row in result.get("calls", []) if row["part"] == part):
            is_main = (row["width"], row["height"]) == (bench.side, bench.side)
            is_main = is_main and row["batch"] == (1 if part.startswith("vae") else 2) and row["tokens"] in (0, 77)
            values = [row.get(name, section.get(name) if is_main else None) for name in _CALL]
            tokens = f", {row['tokens']} tokens" if row["tokens"] not in (0, 77) else ""
            _add(made, f"{part} {row['width']}x{row['height']}, batch {row['batch']}{tokens}, ms", values)
        for name, figures in _SECTION.items():
            _add(made, f"{part}: {name}", [section.get(figure) for figure in figures])
        sampling = section.get("sampling", {}) | {"node": section.get("torch_compile_node", {})}
        ways = ("eager", "", "node", "any_size", "", "exact")  # the node's graphs replay by themselves where it pays
        for name, figure in (("30 steps, s", "30_steps_s"), ("a step, ms", "step_ms")):
            _add(made, f"{part}: sampling, {name}", [sampling.get(way, {}).get(figure) for way in ways])
        for name in (name for name in section if name.endswith(("_refused", "_failed"))):
            made.add_row(f"{part}: {name}", str(section[name]))
    first = result.get("first_image_after_restart", {})
    seconds = {way: found.get("first_image_s") for way, found in first.items()}
    _add(made, "first image after a restart, s", [seconds.get("eager"), *2 * [None], seconds.get("node"), *2 * [None]])
    for name, found in result.get("server", {}).items():
        for step, row in found.items():
            if isinstance(row, dict) and "to_eager_of_255" in row:
                apart = row["to_eager_of_255"]
                made.add_row(f"server {name}, {step}, of 255", *3 * [""], f"{apart['largest']}, mean {apart['mean']}")
        if "failed" in found:
            made.add_row(f"server {name}", found["failed"])
    return made


def _caption(result: dict[str, Any]) -> str:
    limits = result.get("limits", {})
    words = []
    if "matmul_fp16_tflops" in limits:
        words.append(
            f"matrix products {limits['matmul_bf16_tflops']} TFLOP/s bf16, {limits['matmul_fp16_tflops']} fp16: "
            f"{SDXL_TFLOP} TFLOP of SDXL take {limits['sdxl_floor_ms']} ms or more"
        )
    if "restore_all_s" in result:
        words.append(f"base, refiner, decoder and encoder restored in {result['restore_all_s']} s")
    return "; ".join(words)
