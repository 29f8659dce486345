"""Write the table of docs/diffusers.md from build/diffusers_blocks.json: `.venv/bin/python tools/diffusers_blocks.py`.

tests/pipelines/test_block_classes.py writes that file; `run_tests.py --full pipelines` gives all rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REPORT, PAGE = ROOT / "build" / "diffusers_blocks.json", ROOT / "docs" / "diffusers.md"
BEGIN, END = "<!-- written by tools/diffusers_blocks.py: begin -->", "<!-- end -->"
INTRODUCTION = """This table is written by a test: small models with seeded weights, float32 on a CPU, four calls of
other batches, sizes, numbers of frames and prompt lengths after the one that compiles, the relative L2 of the worst
call against eager.
"""
HEAD = ("| class | blocks compiled | apart from eager | eager block calls |", "| --- | --- | --- | --- |")


def cells(row: dict[str, Any]) -> str:
    """A row as Markdown."""
    total = row["calls"] + row["eager_calls"]
    reasons = ", ".join(f"`{code}` {calls}" for code, calls in sorted(row["eager"].items()))
    eager = f"{row['eager_calls']} of {total}: {reasons}" if reasons else "none"
    return f"| `{row['name']}` | {row['compiled']} of {row['blocks']} | {row['worst']:.0e} | {eager} |"


def table(rows: dict[str, dict[str, Any]]) -> str:
    """All rows, by name."""
    return "\n".join([INTRODUCTION, *HEAD, *(cells(rows[name]) for name in sorted(rows))])


def written(page: str, rows: str) -> str:
    """The page with another table."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{rows}\n{END}{tail}"


def main() -> int:
    try:
        rows = json.loads(REPORT.read_text())
    except (OSError, ValueError) as error:
        print(f"no rows ({error}); run the tests first", file=sys.stderr)
        return 1
    PAGE.write_text(written(PAGE.read_text(), table(rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
