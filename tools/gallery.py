"""Write docs/gallery.md from docs/gallery.json: `.venv/bin/python tools/gallery.py`.

First it takes the rows of build/gallery.json, which tests/host/blocks/test_gallery.py writes for each family that it
samples: `run_tests.py --no-lint --full blocks -- -k test_gallery` for all of them, or some by name, as in
`pytest tests/host/blocks/test_gallery.py -k 'vace or pid'`. `--templates FOLDER` reads the templates anew from an
unpacked `comfyui-workflow-templates-json` (its folder `templates`); the tested ComfyUI is started to tell its nodes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA, PAGE, REPORT = (ROOT / name for name in ("docs/gallery.json", "docs/gallery.md", "build/gallery.json"))
NEWER = "newer"  # as gallery_templates has it
MOST_APART = 1  # of 255, as in tests/support/dit_matrix

OUTCOMES = {
    "compiled": "compiled, exact",
    "partly": "compiled in part, exact",
    "uncompiled": "uncompiled, with a reason",
    "wrong": "not exact",
    NEWER: "not run: newer than the tested ComfyUI",
    "not run": "not run",
}
_BEST = [*OUTCOMES]
_COMPILED_BY = "block_recorded"  # the first call of a kind, by which its graph is compiled
_NOT_COUNTED = ("block_small",)  # blocks of a few operations, which no graph would make faster
_LORAS = ("LoraLoader", "LoraLoaderModelOnly")


@dataclass(frozen=True)
class Told:
    """What is known of one model of a template, or of all of them.

    Attributes:
        outcome: of `OUTCOMES`.
        share: of calls that ran compiled in the runs after the first; None: not run.
        reasons: codes of the others.
        relative_l2: compiled against uncompiled.
    """

    outcome: str
    share: float | None = None
    reasons: tuple[str, ...] = ()
    relative_l2: float | None = None


def told_of(family: str, rows: dict[str, dict[str, Any]]) -> Told:
    """What a run of a family showed."""
    if family == NEWER:
        return Told(NEWER)
    row = rows.get(family)
    if row is None:
        return Told("not run")
    later, restarted = row["later"], row["restarted"]
    shares = [_share(later, (*_NOT_COUNTED, _COMPILED_BY)), _share(restarted, _NOT_COUNTED)]
    share = min(shares)
    reasons = tuple(sorted({*later["reasons"], *restarted["reasons"]} - {*_NOT_COUNTED, _COMPILED_BY}))
    exact = row["max_abs_diff_255"] <= MOST_APART and row["relative_l2"] <= row["furthest"]
    outcome = "wrong" if not exact else "compiled" if share == 1 else "partly" if max(shares) else "uncompiled"
    return Told(outcome, share, reasons, row["relative_l2"])


def _share(calls: dict[str, Any], left_out: Iterable[str]) -> float:
    """Of calls that ran compiled, without those of some reasons."""
    uncompiled = calls["uncompiled"] - sum(calls["reasons"].get(code, 0) for code in left_out)
    return calls["compiled"] / max(1, calls["compiled"] + uncompiled)


def together(parts: Iterable[Told]) -> Told:
    """A template is what the least of its models is."""
    parts = [*parts]
    shares = [one.share for one in parts if one.share is not None]
    apart = [one.relative_l2 for one in parts if one.relative_l2 is not None]
    return Told(
        max((one.outcome for one in parts), key=_BEST.index),
        min(shares, default=None),
        tuple(sorted({code for one in parts for code in one.reasons})),
        max(apart, default=None),
    )


def told_of_template(template: dict[str, Any], rows: dict[str, dict[str, Any]], tested: str) -> Told:
    """What came of a template's models. `tested`: the ComfyUI whose nodes it may lack; another may have run them."""
    ran = [rows.get(one["family"], {}).get("comfyui", tested) for one in template["sampled"]]
    if template["lacking"] and tested in (ran or [tested]):
        return Told(NEWER)
    return together(told_of(one["family"], rows) for one in template["sampled"])


def way(nodes: Iterable[str]) -> str:
    """Types of nodes from the loader to the sampler; LoRAs are named as such."""
    return " > ".join("LoRA" if one in _LORAS else one for one in nodes)


def unlike(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def percent(value: float) -> str:
    """One digit, and never all or nothing where it is not."""
    if 0 < value < 1:
        value = min(max(value, 0.001), 0.999)
    return f"{100 * value:.1f} %".replace(".0 %", " %")


def row_of(cells: Iterable[str]) -> str:
    """A row of a table."""
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def line(template: dict[str, Any], rows: dict[str, dict[str, Any]], tested: str) -> str:
    """A template as a row of the table."""
    told, sampled = told_of_template(template, rows, tested), template["sampled"]
    names = unlike(one["family"] for one in sampled if one["family"] not in ("", NEWER))
    reason = unlike(f"`{code}`" for code in told.reasons)
    if told.outcome == NEWER:
        reason = OUTCOMES[NEWER] + (f" ({', '.join(template['lacking'])})" if names else "")
    if told.outcome == "not run":
        reason = OUTCOMES["not run"]
    exact = "" if told.relative_l2 is None else "**no**" if told.outcome == "wrong" else "yes"
    cells = [
        template["name"], f"{template['use']:,}", names or unlike(one["file"] for one in sampled),
        unlike(one["weights"] for one in sampled), unlike(way(one["nodes"]) for one in sampled),
        "" if told.share is None else percent(told.share), exact, reason,
    ]  # fmt: skip
    return row_of(cells)


def shares(templates: list[dict[str, Any]], rows: dict[str, dict[str, Any]], tested: str) -> Iterator[str]:
    """The table of shares of use."""
    use, count = _uses(templates, rows, tested)
    yield "| | share of use | templates | share of what the tested ComfyUI can run |"
    yield "| --- | ---: | ---: | ---: |"
    total, runs = sum(use.values()), sum(use.values()) - use[NEWER]
    for outcome, text in OUTCOMES.items():
        if count[outcome] or outcome == "wrong":
            cells = [text, percent(use[outcome] / max(1, total)), str(count[outcome])]
            yield row_of([*cells, "" if outcome == NEWER else percent(use[outcome] / max(1, runs))])


def _uses(
    templates: list[dict[str, Any]], rows: dict[str, dict[str, Any]], tested: str
) -> tuple[Counter[str], Counter[str]]:
    """How often templates of each outcome are used, and how many there are."""
    use: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for template in templates:
        outcome = told_of_template(template, rows, tested).outcome
        use[outcome] += template["use"]
        count[outcome] += 1
    return use, count


def share_compiled() -> str:
    """The share of all use that runs compiled, as the page has it."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    rows = {row["family"]: row for row in data["families"]}
    use = _uses([one for one in data["templates"] if one["sampled"]], rows, data["comfyui"])[0]
    return percent(use["compiled"] / use.total())


def family_lines(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The table of what was run."""
    yield "| family | first sampling | six more | after a restart | relative L2 | reasons |"
    yield "| --- | --- | --- | --- | ---: | --- |"
    for name, row in sorted(rows.items()):
        cells = [name]
        for process in (row["first"], row["later"], row["restarted"]):
            compiles = f", {process['compiles']} compiles" if process["compiles"] else ""
            cells.append(f"{process['compiled']} of {process['compiled'] + process['uncompiled']}{compiles}")
        reasons = {code for one in (row["later"], row["restarted"]) for code in one["reasons"]}
        cells += [f"{row['relative_l2']:.0e}", unlike(f"`{code}`" for code in sorted(reasons))]
        yield row_of(cells)


TEXT = """# ComfyUI's templates

What ComfyUI's own templates sample, and what of it runs compiled. `tools/gallery.py` writes this page from
[gallery.json](gallery.json). Nothing here was measured with full models.

The templates are those of {package}, and so are their uses. {sampled} of them sample a
model of a local file and are listed. {others} sample none: partners' models, depth, segmentation, upscaling, text. They
are read without being run: subgraphs taken apart, bypassed nodes left out, switches as they are saved.

A model's family is told by the name of its file and by the nodes beside it. Each family was sampled as a small model of
ComfyUI's own class ({comfyui}),
in float32 on a CPU, with the template's own nodes on the model, its guider and its
sampler: at two sizes, with CFG and without, with a LoRA at two strengths, and all of it again after a restart. Other
formats of weights are tested by themselves ([models.md](models.md#quantised-weights)). VAEs, text encoders and all else
that is not the sampled model do not count here.

## Share of use

{shares}

## Templates

`compiled` is the share of the calls of a model's blocks that ran compiled, after the first sampling, but for the first
calls of a kind, by which its graph is compiled (the table below has them); or that ran so after a restart, if these are
fewer. Blocks of less than 20 operations, such as a single layer with an activation, are left as they are, and their
calls are not counted.
`exact`: the latents are those without OneGraph, within 1e-5 (relative L2); of Chroma Radiance
within 2e-5, as uncompiled ones of two libraries for matrix products are 1.5e-5 apart.

| template | use | family or file | weights | nodes on the model | compiled | exact | reason |
| --- | ---: | --- | --- | --- | ---: | --- | --- |
{templates}

## Families

Calls of blocks that ran compiled, of all: in the first sampling of a first process, in six more, and in the same six
after a restart.

{families}
"""


def page(data: dict[str, Any]) -> str:
    """The page from what is known."""
    rows = {row["family"]: row for row in data["families"]}
    sampled = [one for one in data["templates"] if one["sampled"]]
    return TEXT.format(
        package=data["package"],
        sampled=len(sampled),
        others=len(data["templates"]) - len(sampled),
        comfyui=unlike(sorted(row["comfyui"] for row in data["families"])) or data["comfyui"],
        shares="\n".join(shares(sampled, rows, data["comfyui"])),
        templates="\n".join(line(one, rows, data["comfyui"]) for one in sampled),
        families="\n".join(family_lines(rows)),
    )


def with_rows(data: dict[str, Any], report: list[dict[str, Any]]) -> dict[str, Any]:
    """The data with the rows of a run; those of other families stay."""
    rows = {row["family"]: row for row in [*data["families"], *report]}
    return {**data, "families": [rows[name] for name in sorted(rows)]}


def templates_of(folder: Path, package: str) -> dict[str, Any]:
    """What the templates of a folder sample, by the nodes of the tested ComfyUI. Raises JobError."""
    sys.path.insert(0, str(ROOT / "tools"))
    from headless import host

    host.import_pack()
    import gallery_templates

    from onegraph.host.jobs.workflow_job import WorkflowTask, started

    task = WorkflowTask("", "explain", comfyui=str(host.comfyui_path()), options=("--cpu",))
    with started(task) as server:
        types = server.ask("/object_info")
        version = server.ask("/system_stats")["system"]["comfyui_version"]
    templates = [gallery_templates.to_json(one) for one in gallery_templates.read(folder, types)]
    return {"package": package, "comfyui": version, "templates": templates}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--templates", type=Path, help="folder with index.json and the templates, read anew")
    parser.add_argument("--package", default="", help="its package and version, for the page")
    chosen = parser.parse_args()
    data = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {"families": []}
    if chosen.templates:
        data |= templates_of(chosen.templates, chosen.package)
    if REPORT.exists():
        data = with_rows(data, json.loads(REPORT.read_text(encoding="utf-8")))
    DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(data), encoding="utf-8")
    print(f"{PAGE} is written")


if __name__ == "__main__":
    main()
