"""Write the table of docs/faithfulness.md from build/faithfulness.json: `.venv/bin/python tools/faithfulness.py`.

The tests in tests/workflows write that file; `run_tests.py --full workflows` gives all rows.
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
HEAD = (
    "| case | backend | compiled | eager | reasons | apart | effect | reported by others |",
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


def written(page: str, table: str) -> str:
    """The page with another table."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def main() -> int:
    sys.path.insert(0, str(ROOT / "tests"))
    cases = importlib.import_module("support.matrix.table").CASES
    try:
        table = tables(json.loads(REPORT.read_text()), cases)
    except OSError as error:
        print(f"{REPORT} cannot be read: {error}. Run tools/run_tests.py --no-lint --full workflows first.")
        return 1
    except KeyError as error:
        print(f"{REPORT} has no row for {error}. Run tools/run_tests.py --no-lint --full workflows first.")
        return 1
    PAGE.write_text(written(PAGE.read_text(), table))
    print(f"{PAGE} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
