"""What the pages state as measured is in the results that they name, and the first screens are written from them."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import figures
import measured
import pytest

DOCS = measured.ROOT / "docs"
FRONTS = sorted(measured.ROOT.glob("README*.md"))
# Pages whose tables are measurements; tables of the others say how exact results are, which tests of their own check.
MEASURED = {
    "benchmarks.md": r"##? .*",
    "performance.md": r"##? .*",
    "fleet.md": r"## What it costs",
    "models.md": r"## (What a step takes|Models larger than the free VRAM)",
}
NUMBER = re.compile(r"(?<![\w.,-])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?:\s*(ms|s|MiB|GiB|x))?(?![\w.]*\w)")
UNIT = re.compile(r"\d(?:\.\d+)?(?:\s?(?:ms|MiB|s|min|%)\b|x\b|×)")
FILE = re.compile(r"benchmarks/results/([\w.-]+\.json)\)")
SCALES = (1, 1e-3, 1e3, 1 / 1024, 1e-6, 1 / 2**20, 1 / 2**30)
NO_FILE = "No file was kept"


@cache
def values(name: str) -> tuple[float, ...]:
    """All numbers in a file of results."""

    def of(node: Any) -> list[float]:
        if isinstance(node, dict):
            node = list(node.values())
        if isinstance(node, list):
            return [value for child in node for value in of(child)]
        if isinstance(node, str):
            return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", node)]
        return [] if node is None or isinstance(node, bool) else [float(node)]

    return tuple(of(json.loads((measured.RESULTS / name).read_text(encoding="utf-8"))))


def is_in(whole: str, fraction: str | None, names: list[str]) -> bool:
    """Whether a file has a number that is written so when it is rounded, in the same or in a larger unit."""
    digits = len(fraction) - 1 if fraction else 0
    stated, slack = float(whole.replace(",", "") + (fraction or "")), 0.5 * 10**-digits * 1.001
    return any(abs(value * scale - stated) <= slack for name in names for value in values(name) for scale in SCALES)


def tables(text: str) -> list[list[str]]:
    """The rows of each table, cells split."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") else [] for line in text.split("\n")
    ]
    found: list[list[str]] = []
    for row in rows:
        found.extend([row] if row else [])
    return found


def unknown(section: str, before: list[str]) -> list[str]:
    """Figures in a section's tables that no file has which the section or the page's first one names."""
    names = [*FILE.findall(section), *before]
    cells = [cell for row in tables(section) for cell in row[1:]]
    given = [found.groups() for cell in cells for found in NUMBER.finditer(cell)]
    return [whole + (part or "") for whole, part, unit in given if (part or unit) and not is_in(whole, part, names)]


def sections(page: Path) -> tuple[list[str], list[str]]:
    """The sections of a page, and the files that its first one names."""
    found = re.split(r"\n(?=## )", page.read_text(encoding="utf-8"))
    return found, FILE.findall(found[0])


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.name)
def test_figures_are_those_of_the_results(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == figures.written(page), "run tools/figures.py"


@pytest.mark.parametrize("page", FRONTS, ids=lambda page: page.name)
def test_a_first_screen_states_nothing_else(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(figures.TABLE.findall(text)) == 1 and len(figures.INLINE.findall(text)) >= 3
    left = re.sub(r"```.*?```|`[^`\n]*`", "", figures.INLINE.sub("", figures.TABLE.sub("", text)), flags=re.DOTALL)
    assert UNIT.findall(left) == []
    # CommonMark reads a line that begins with a comment as HTML, links in it included.
    assert not re.search(r"^<!--figure", text, re.MULTILINE)


@pytest.mark.parametrize("name", MEASURED)
def test_tables_state_what_was_measured(name: str) -> None:
    found, before = sections(DOCS / name)
    chosen = [section for section in found if re.match(MEASURED[name], section)]
    assert chosen
    for section in chosen:
        if NO_FILE not in section and not (NO_FILE in found[0] and not FILE.search(section)):
            assert unknown(section, before) == [], section.splitlines()[0]


def test_a_figure_that_no_file_has_is_found() -> None:
    file = f"[file](benchmarks/results/{measured.H200})"
    assert unknown(f"{file}\n| a | 169.1 ms |\n| b | 46.8 s |", []) == []
    assert unknown(f"{file}\n| a | 169.2 ms |\n| b | 12,345 MiB |", []) == ["169.2", "12,345"]
    assert unknown("| a | 1.5 |", [measured.H200]) != ["1.5"] and unknown("| a | 1.5 |", []) == ["1.5"]


def test_compiled_steps_are_faster_in_the_first_table() -> None:
    """What is not would have to be said there."""
    slower = [
        f"{one.model} in {one.weights}"
        for one in measured.measured()
        if one.step["OneGraph"] >= min(v for k, v in one.step.items() if k != "OneGraph")
    ]
    readme = (measured.ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"{one} is no faster compiled" in readme for one in slower), slower
    assert all(first["OneGraph"] < first["torch.compile"] for first in measured.restarts().values())
