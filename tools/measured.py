"""What benchmarks/results tell of the models that the pages list: steps, first steps, compiles."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
H200, H100_Z, H100, H100_WAN = (
    "2026-11-26-h200-a379aab.json",
    "2026-11-24-h100-b091270.json",
    "2026-11-25-h100-e59107e.json",
    "2026-11-25-h100-a33b7c8.json",
)
H100_NEWER, H200_NEWER = "2026-11-27-h100-9cdf576.json", "2026-11-27-h200-2c17048.json"
NEWEST = "2026-11-27-h200-cf4424e.json"
STEPS = "2026-11-30-h200-steps.json"
TEXTS = "2026-11-28-h200-texts.json"
PROMPTS = "2026-11-28-h200-prompts.json"
SDXL_AGAIN = "2026-11-21-h200-f204330.json"  # has torch.compile's first step with its caches filled
SDXL = "sdxl_base_1024_b2"
KEYS = {  # a model's name in the results
    "FLUX.1 dev": "flux",
    "Qwen-Image": "qwen-image",
    "Wan 2.1 14B": "wan 2.1 t2v",
    "Z-Image": "z-image",
    "MiniMax H3": "minimax h3",
    "Qwen-Image 2.1": "qwen-image 2.1",
    "Krea 2": "krea 2",
    "LTX 2": "ltx 2",
}
FORMATS = {
    "bf16": "", "fp8": ", fp8 scaled", "int8": ", int8 convrot", "GGUF Q8_0": ", gguf Q8_0", "GGUF Q4_0": ", gguf Q4_0"
}  # fmt: skip
CARDS = {"Qwen-Image": 16, "FLUX.1 dev": 12}  # GiB, both in fp8
_OF_GRAPH = 3  # figures of a graph in a row: seconds of its compile, a call's milliseconds uncompiled and compiled


@dataclass(frozen=True)
class Measured:
    """One model in one format on one card.

    Attributes:
        step: milliseconds of the fastest step by `eager`, `torch.compile` and `OneGraph`, of those that were measured.
        first: seconds of the first step of a process that finds what an earlier one stored, likewise.
        compile_s: seconds of the longest compile, in which the others of the model run beside it.
        source: the file in benchmarks/results.
    """

    model: str
    weights: str
    card: str
    step: dict[str, float]
    first: dict[str, float]
    compile_s: float | None
    source: str


@cache
def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def rows_of(source: str, key: str) -> dict[str, dict[str, Any]]:
    """The rows of a model, by the way it ran."""
    found = read(source)["models"][key]
    return {row["way"]: row for row in (found["rows"] if isinstance(found, dict) else found)}


def compile_s(source: str, key: str) -> float | None:
    """Seconds of a model's longest compile, beside which its others ran."""
    values = rows_of(source, key)["ours"].values()
    return max((one[0] for one in values if isinstance(one, list) and len(one) == _OF_GRAPH), default=None)


def _transformer(model: str, weights: str, card: str, source: str) -> Measured:
    ways = rows_of(source, KEYS[model] + FORMATS[weights])

    def least(prefix: str) -> float | None:
        return min((row["least_ms"] for way, row in ways.items() if way.startswith(prefix)), default=None)

    step = {"eager": least("eager"), "torch.compile": least("torch.compile"), "OneGraph": least("ours")}
    first = {"torch.compile": ways.get("torch.compile, again"), "OneGraph": ways.get("ours, restored")}
    return Measured(
        model, weights, card,
        {way: value for way, value in step.items() if value is not None},
        {way: row["first_s"] for way, row in first.items() if row is not None},
        compile_s(source, KEYS[model] + FORMATS[weights]), source,
    )  # fmt: skip


@cache
def measured() -> tuple[Measured, ...]:
    """All that the first table lists, in its order."""
    sdxl, restores = read(H200)[SDXL], [one for one in read(H200)["restore"] if one["mode"] == ["plain"]]
    turns = sdxl["turns"]
    flux, qwen, wan, z_image, minimax, qwen21, krea, ltx = KEYS
    return (
        _transformer(flux, "bf16", "H200", STEPS),
        _transformer(flux, "fp8", "H200", NEWEST),
        _transformer(flux, "int8", "H200", NEWEST),
        _transformer(flux, "GGUF Q8_0", "H200", NEWEST),
        _transformer(flux, "GGUF Q4_0", "H200", NEWEST),
        _transformer(qwen, "bf16", "H200", STEPS),
        _transformer(qwen, "fp8", "H200", NEWEST),
        _transformer(qwen, "int8", "H200", NEWEST),
        _transformer(wan, "bf16", "H100", H100),
        _transformer(wan, "fp8", "H100", H100_WAN),
        _transformer(z_image, "bf16", "H200", STEPS),
        _transformer(z_image, "fp8", "H200", NEWEST),
        _transformer(z_image, "int8", "H200", NEWEST),
        _transformer(minimax, "bf16", "H100", H100_NEWER),
        _transformer(minimax, "fp8", "H200", H200_NEWER),
        _transformer(minimax, "int8", "H200", H200_NEWER),
        _transformer(qwen21, "bf16", "H100", H100_NEWER),
        _transformer(qwen21, "fp8", "H100", H100_NEWER),
        _transformer(qwen21, "int8", "H200", H200_NEWER),
        _transformer(krea, "bf16", "H100", H100_NEWER),
        _transformer(krea, "fp8", "H200", H200_NEWER),
        _transformer(ltx, "bf16", "H100", H100_NEWER),
        _transformer(ltx, "fp8", "H200", H200_NEWER),
        Measured(
            "SDXL base, batch 2", "fp16", "H200",
            {
                "eager": turns["eager"]["least"],
                "torch.compile": turns["torch.compile"]["least"],
                "OneGraph": turns["ours, as it runs"]["least"],
            },
            {
                "torch.compile": read(SDXL_AGAIN)[SDXL]["torch_compile_warm_s"],
                "OneGraph": max(one["restore_s"] for one in restores),
            },
            sdxl["compile_s"], H200,
        ),
    )  # fmt: skip


def restarts() -> dict[str, dict[str, float]]:
    """Seconds of the first step after a restart, of the models where both were measured on one card."""
    z_image = rows_of(H100_Z, "z-image")
    known = {f"{one.model}, {one.card}": one.first for one in measured() if len(one.first) > 1}
    known["Z-Image, bf16, H100"] = {
        "torch.compile": z_image["torch.compile, again"]["first_s"], "OneGraph": z_image["ours, restored"]["first_s"]
    }  # fmt: skip
    return known
