"""Figures of the pages: every one that README states, and the tables of docs/models.md, from benchmarks/results; of
templates, from docs/gallery.json.

`.venv/bin/python tools/figures.py` writes them between the marks of each page: `<!-- figures NAME -->` and
`<!-- end -->` around a table, `<!--figure NAME-->` and `<!--end-->` around a figure in a sentence.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gallery
from measured import (
    CARDS,
    FORMATS,
    H100_Z,
    H200,
    KEYS,
    NEWEST,
    PROMPTS,
    ROOT,
    SDXL,
    SDXL_AGAIN,
    STEPS,
    TEXTS,
    compile_s,
    measured,
    read,
    rows_of,
)

PAGES = (*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("*.md")))
TABLE = re.compile(r"(<!-- figures ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!--figure ([\w-]+)-->).*?(<!--end-->)", re.DOTALL)


WAYS = {
    "eager": "uncompiled",
    "eager, another process": "uncompiled, another process",
    "torch.compile": "torch.compile, whole (ComfyUI's node)",
    "torch.compile, again": "the same, caches filled",
    "torch.compile by block": "torch.compile, each block",
    "torch.compile by block, again": "the same, caches filled",
    "ours": "**OneGraph**, which compiles",
    "ours, restored": "**OneGraph**, restored",
}


def ways_table() -> str:
    """Every way that was measured on the transformers of the first table."""
    lines = [
        "| model, weights, card | way | step, ms: median, fastest | first step, s | first two with another LoRA, ms | "
        "with a reference image, ms | activations, MiB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    listed = {(one.model, one.weights, one.card): one.source for one in measured()}
    for (model, weights, card), source in {**listed, ("Z-Image", "bf16", "H100"): H100_Z}.items():
        if model not in KEYS:
            continue
        label = f"{model}, {weights}, {card}"
        for way, row in rows_of(source, KEYS[model] + FORMATS[weights]).items():
            lora, reference = row.get("lora_1.0_ms"), row.get("reference_ms")
            step = f"{number(row['step_ms'])}, {number(row['least_ms'])}"
            lines.append(
                f"| {label} | {WAYS[way]} | {step} | {row['first_s']:.2f} | "
                f"{f'{lora[0]:.0f}, {lora[1]:.0f}' if lora else '-'} | "
                f"{f'{statistics.median(reference):.0f}' if reference else '-'} | {row.get('peak_mib') or '-'} |"
            )
            label = ""
    return "\n".join(lines).replace("|  |", "| |") + "\n"


def card(model: str) -> dict[str, dict[str, Any]]:
    """The rows of a model with the memory of a smaller card, by the way it ran."""
    key = f"{KEYS[model]}{FORMATS['fp8']}, {CARDS[model]}"
    return {row["way"]: row for row in read(NEWEST)["cards"][key]["rows"]}


def cards_table() -> str:
    """Models with the memory of a smaller card."""
    lines = [
        "| model, weights | memory of the card | uncompiled, ms a step | OneGraph: new timesteps | known ones | | "
        "used, GiB |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for model, size in CARDS.items():
        rows = card(model)
        eager, ours = rows["eager"], rows["ours"]
        used = ", ".join(f"{row['used_mib'] / 1024:.1f}" for row in (eager, ours))
        lines.append(
            f"| {model}, fp8, {eager['weights_mib'] / 1024:.1f} GiB | {size} GiB | {number(eager['least_ms'])} | "
            f"{number(ours['new_timesteps_ms'])} | **{number(ours['least_ms'])}** | "
            f"{eager['least_ms'] / ours['least_ms']:.2f}x | {used} |"
        )
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Three digits, thousands apart."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def span(values: Iterable[float], digits: int = 0) -> str:
    known = sorted(values)
    low, high = f"{known[0]:.{digits}f}", f"{known[-1]:.{digits}f}"
    return low if low == high else f"{low}–{high}"


# The words of the first table and of the one for what it lacks.
WORDS = {
    "en": (
        "model", "weights, card", "uncompiled", "speed-up", "first step after a restart", "not measured yet",
        "consumer cards, such as RTX 5090, 4090 and 3090",
        "run `onegraph bench --share` and [send the file]({issues})",
    ),
    "zh": (
        "模型", "权重，显卡", "未编译", "加速比", "重启后的第一步", "尚未测量",
        "消费级显卡，例如 RTX 5090、4090 和 3090",
        "请运行 `onegraph bench --share` 并[发送文件]({issues})",
    ),
    "ja": (
        "モデル", "重み、GPU", "未コンパイル", "速度比", "再起動後の最初のステップ", "未計測",
        "RTX 5090、4090、3090 などの GPU",
        "`onegraph bench --share` を実行して[ファイルを送ってください]({issues})",
    ),
}  # fmt: skip
ISSUES = "https://github.com/onegraph/ComfyUI-OneGraph/issues/new?template=figures.yml"


def first_table(language: str) -> str:
    """What people run: milliseconds a step, and seconds of the first one after a restart; and what is missing."""
    model, weights, eager, speedup, first, missing, cards, ask = WORDS[language]
    lines = [
        f"| {model} | {speedup} | {weights} | OneGraph | {eager} | torch.compile | {first} |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    before = ""
    for one in measured():
        step, start = one.step, one.first
        model = one.model.replace(" ", "\u00a0").replace(",\u00a0", ", ") if one.model != before else ""
        weights = f"{one.weights},\u00a0{one.card}"
        lines.append(
            f"| {model} | **{step['eager'] / step['OneGraph']:.2f}x** | {weights} | "
            f"{number(step['OneGraph'])} | {number(step['eager'])} | "
            f"{number(step['torch.compile']) if 'torch.compile' in step else '-'} | "
            f"{number(start['OneGraph']) + ' s' if 'OneGraph' in start else '-'} |"
        )
        before = one.model
    lines += [
        "",
        f"| {missing} | |",
        "| --- | --- |",
        f"| {cards} | {ask.format(issues=ISSUES)} |",
    ]
    return "\n".join(lines).replace("|  |", "| |") + "\n"


def _restores() -> list[float]:
    return [one.first["OneGraph"] for one in measured() if one.card == "H200" and "OneGraph" in one.first]


def _sources() -> str:
    names = dict.fromkeys((*(one.source for one in measured()), H100_Z, SDXL_AGAIN))
    return ", ".join(f"[{name.removesuffix('.json')}](../benchmarks/results/{name})" for name in names)


def _prompt(way: str, which: str) -> float:
    """Seconds of a whole prompt of LTX 2: texts, sampling and decode."""
    return rows_of(PROMPTS, "ltx 2")[way][which]["all"]


def _compiles() -> list[float]:
    """Seconds of a compile of each model on one H200, and of SDXL's base on another with slower cores."""
    found = [compile_s(STEPS, key) or 0.0 for key in read(STEPS)["models"]]
    return [*found, read(STEPS)["compiles"]["sdxl base, on that machine"][SDXL]["cold_s"]["after"]]


def steps_table() -> str:
    """Four models in one run: steps as they are waited for and back to back, and the first ones of a process."""
    lines = [
        "| model | way | a step, waited for | until it is launched | back to back | its bare replay | "
        "the first three steps, s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for key, model in {
        "sdxl": "SDXL base, fp16, batch 2",
        **{key: f"{name}, bf16" for name, key in KEYS.items()},
    }.items():
        label = model
        for way, row in rows_of(STEPS, key).items() if key in read(STEPS)["models"] else ():
            replay = number(row["bare_replay_ms"]) if "bare_replay_ms" in row else "-"
            times = " | ".join(number(row[name]) for name in ("step_ms", "processor_ms", "back_to_back_ms"))
            first = ", ".join(f"{row[f'{which}_s']:.2f}" for which in ("first", "second", "third"))
            lines.append(f"| {label} | {WAYS[way]} | {times} | {replay} | {first} |")
            label = ""
    return "\n".join(lines).replace("|  |", "| |") + "\n"


FIGURES: dict[str, Callable[[], str]] = {
    "first-en": lambda: first_table("en"),
    "first-zh": lambda: first_table("zh"),
    "first-ja": lambda: first_table("ja"),
    "ways": ways_table,
    "sources": _sources,
    "compile": lambda: f"{span(_compiles())} s",
    "compile-sdxl": lambda: f"{number(compile_s(STEPS, 'sdxl') or 0.0)} s",
    "restart": lambda: f"{span(_restores(), 1)} s",
    "restart-sdxl": lambda: f"{span((one['restore_s'] for one in read(H200)['restore'][:2]), 2)} s",
    "restart-sdxl-preloaded": lambda: f"{read(H200)['restore'][2]['restore_s']:.2f} s",
    "restart-sdxl-torch": lambda: f"{read(SDXL_AGAIN)[SDXL]['torch_compile_warm_s']:.0f} s",
    "gallery": gallery.share_compiled,
    "cards": cards_table,
    "steps": steps_table,
    "card-eager": lambda: number(card("Qwen-Image")["eager"]["least_ms"]),
    "card": lambda: number(card("Qwen-Image")["ours"]["least_ms"]),
    "token-times": lambda: number(rows_of(TEXTS, "qwen 3 4b")["ours"]["of_eager_in_turns"]),
    "token": lambda: number(rows_of(TEXTS, "qwen 3 4b")["ours"]["token_ms"]),
    "prompt-first-eager": lambda: f"{_prompt('eager', 'first'):.1f} s",
    "prompt-first": lambda: f"{_prompt('ours, restored', 'first'):.1f} s",
    "prompt-eager": lambda: f"{_prompt('eager', 'later'):.1f} s",
    "prompt": lambda: f"{_prompt('ours, restored', 'later'):.1f} s",
    "restart-z-image-torch": lambda: f"{rows_of(H100_Z, 'z-image')['torch.compile, again']['first_s']:.0f} s",
}


def written(page: Path) -> str:
    """A page with the figures in it as the results have them."""
    text = page.read_text(encoding="utf-8")
    text = TABLE.sub(lambda found: found[1] + FIGURES[found[2]]() + found[3], text)
    return INLINE.sub(lambda found: found[1] + FIGURES[found[2]]() + found[3], text)


def main() -> None:
    for page in PAGES:
        page.write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    main()
