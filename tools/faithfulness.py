"""Write the tables of docs/faithfulness.md: `.venv/bin/python tools/faithfulness.py`.

The tests in tests/workflows write build/faithfulness.json, tests/host/blocks/test_families.py writes
build/families.json; `run_tests.py --full workflows blocks` gives all rows of both.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REPORT, PAGE = ROOT / "build" / "faithfulness.json", ROOT / "docs" / "faithfulness.md"
BEGIN, END = "<!-- written by tools/faithfulness.py: begin -->", "<!-- end -->"
OF_FAMILIES = ROOT / "build" / "families.json"
BEGIN_FAMILIES = "<!-- written by tools/faithfulness.py: families begin -->"
HEAD = (
    "| case | backend | compiled | uncompiled | reasons | apart | effect | reported by others |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)


HEAD_FAMILIES = (
    "| what is added | compiled | kinds | uncompiled | reasons | relative L2 | apart | effect |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)


def cells(row: dict[str, Any], name: str, reports: tuple[str, ...]) -> str:
    """A row as Markdown."""
    effect = "" if row["effect_255"] is None else row["effect_255"]
    reasons = ", ".join(f"`{code}`" for code in row["reasons"])
    shown = [name, row["backend"], row["compiled_calls"], row["eager_calls"], reasons, row["max_abs_diff_255"], effect]
    return "| " + " | ".join(map(str, [*shown, ", ".join(reports)])) + " |"


def tables(rows: list[dict[str, Any]], cases: Any) -> str:
    """The rows in one table for each group of cases.

    Raises:
        KeyError: a case has no row.
    """
    found = {(row["case"], row["backend"]): row for row in rows}
    lines: list[str] = []
    group = ""
    for case in cases:
        if case.group != group:
            group = case.group
            lines += ["", f"### {group}", "", *HEAD]
        for backend in case.backends:
            lines.append(cells(found[f"{case.group}: {case.name}", backend], case.name, case.reports))
    return "\n".join([*lines, ""])


def family_cells(row: dict[str, Any]) -> str:
    """A row of a family as Markdown."""
    effect = "" if row["effect"] is None else f"{row['effect']:.1e}"
    reasons = ", ".join(f"`{code}`" for code in row["reasons"])
    calls = [row["case"], row["compiled_calls"], row["kinds"] or "", row["eager_calls"], reasons]
    shown = [*calls, f"{row['relative_l2']:.0e}", row["max_abs_diff_255"], effect]
    return "| " + " | ".join(map(str, shown)) + " |"


def family_tables(rows: list[dict[str, Any]], cases: Any) -> str:
    """The rows in one table for each family.

    Raises:
        KeyError: a case has no row.
    """
    found = {(row["family"], row["case"]): row for row in rows}
    lines: list[str] = []
    family = ""
    for case in cases:
        if case.family != family:
            family = case.family
            lines += ["", f"### {family}", "", *HEAD_FAMILIES]
        lines.append(family_cells(found[case.family, case.name]))
    return "\n".join([*lines, ""])


def written(page: str, table: str, begin: str = BEGIN) -> str:
    """The page with another table."""
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(END)
    return f"{head}{begin}\n{table}\n{END}{tail}"


def main() -> int:
    sys.path.insert(0, str(ROOT / "tests"))
    tables_of = (
        (REPORT, BEGIN, tables, "support.matrix.table", "workflows"),
        (OF_FAMILIES, BEGIN_FAMILIES, family_tables, "support.dit_matrix.table", "host"),
    )
    page = PAGE.read_text()
    done = 1
    for report, begin, make, module, layer in tables_of:
        try:
            page = written(page, make(json.loads(report.read_text()), importlib.import_module(module).CASES), begin)
            done = 0
        except OSError as error:
            print(f"{report} cannot be read: {error}. Run tools/run_tests.py --no-lint --full {layer} first.")
        except KeyError as error:
            print(f"{report} has no row for {error}. Run tools/run_tests.py --no-lint --full {layer} first.")
    PAGE.write_text(page)
    print(f"{PAGE} is written")
    return done


if __name__ == "__main__":
    sys.exit(main())
