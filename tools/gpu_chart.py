"""docs/pictures/gpu.svg: what a step takes on a GPU, and the first one of a new process, from benchmarks/results."""

from __future__ import annotations

import json
from typing import Any

from headless import host

host.import_pack()
from onegraph.cli.report import Bar, Bars, Group, bars_file  # noqa: E402

RESULTS = host.ROOT / "benchmarks" / "results"
FILE = host.ROOT / "docs" / "pictures" / "gpu.svg"
SDXL = "2026-11-21-h200-f204330.json"
Z_IMAGE = "2026-11-24-h100-b091270.json"
OTHERS = "2026-11-25-h100-e59107e.json"
FLOAT8 = "2026-11-24-h100-d777f78.json"
WAN_FLOAT8 = "2026-11-25-h100-a33b7c8.json"
# (label, file, its model, the process whose steps docs/models.md lists), of the benchmark of diffusion transformers.
FIRST, RESTORED = "ours", "ours, restored"
TRANSFORMERS = (
    ("Z-Image, H100", Z_IMAGE, "z-image", FIRST),
    ("Z-Image, fp8, H100", Z_IMAGE, "z-image, fp8 scaled", FIRST),
    ("FLUX.1 dev, H100", OTHERS, "flux", RESTORED),
    ("FLUX.1 dev, fp8, H100", FLOAT8, "flux, fp8 scaled", FIRST),
    ("Qwen-Image, H100", OTHERS, "qwen-image", FIRST),
    ("Wan 2.1 14B, 832x480x49, H100", OTHERS, "wan 2.1 t2v", FIRST),
    ("the same, fp8, H100", WAN_FLOAT8, "wan 2.1 t2v, fp8 scaled", FIRST),
)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


def ways(name: str, model: str) -> dict[str, dict[str, Any]]:
    """The rows of a model, by the way it ran."""
    found = read(name)["models"][model]
    return {row["way"]: row for row in (found["rows"] if isinstance(found, dict) else found)}


def bars_of(eager: float | None, torch: float | None, ours: float, unit: str) -> tuple[Bar, ...]:
    """Bars of what was measured; behind ours, how many times eager's speed it is."""

    def text(value: float) -> str:
        digits = 0 if value >= 100 else 1 if value >= 10 else 2
        return f"{value:,.{digits}f} {unit}"

    given = (("eager", eager, "eager"), ("torch.compile", torch, "torch"))
    others = tuple(Bar(label, value, series, text(value)) for label, value, series in given if value is not None)
    gain = f"  ({eager / ours:.2f}x)" if eager else ""
    return (*others, Bar("OneGraph", ours, "compiled", text(ours) + gain))


def steps() -> Bars:
    """A step of each model, milliseconds; each model has its own scale."""
    sdxl = read(SDXL)["sdxl_base_1024_b2"]
    times = bars_of(sdxl["eager_ms"], sdxl["torch_compile_ms"], sdxl["any_size_ms"], "ms")
    groups = [Group("SDXL base, batch 2, H200", times)]
    for label, name, model, process in TRANSFORMERS:
        known = {way: row["step_ms"] for way, row in ways(name, model).items()}
        theirs = known.get("torch.compile", known.get("torch.compile by block"))
        groups.append(Group(label, bars_of(known["eager"], theirs, known[process], "ms")))
    note = (
        "Full size, random weights, 1024x1024 where nothing else is said. The bars of each model have their own scale."
    )
    return Bars("A sampling step", tuple(groups), note, "apart")


def starts() -> Bars:
    """The first compiled step of a new process that finds what an earlier one stored, seconds."""
    sdxl, z_image = read(SDXL)["sdxl_base_1024_b2"], ways(Z_IMAGE, "z-image")
    found = {
        "SDXL base, batch 2, H200": (sdxl["torch_compile_warm_s"], sdxl["restore_s"]),
        "Z-Image, H100": (z_image["torch.compile, again"]["first_s"], z_image[RESTORED]["first_s"]),
    }
    groups = tuple(Group(label, bars_of(None, torch, ours, "s")) for label, (torch, ours) in found.items())
    return Bars("The first compiled step of a new process, caches filled", groups)


def chart() -> str:
    return bars_file((steps(), starts()), "Diffusion models on a GPU: eager, torch.compile and OneGraph")


def main() -> None:
    FILE.write_text(chart(), encoding="utf-8")
    print(FILE.relative_to(host.ROOT))


if __name__ == "__main__":
    main()
