"""Write the table of formats in docs/models.md from build/quantised.json: `.venv/bin/python tools/quantised.py`.

tests/host/blocks/test_quantised_blocks.py writes that file; `run_tests.py --no-lint --full blocks` gives all rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from faithfulness import ROOT, written

REPORT, PAGE = ROOT / "build" / "quantised.json", ROOT / "docs" / "models.md"
BEGIN = "<!-- written by tools/quantised.py: begin -->"
HEAD = (
    "| family | format | compiled: resident | paged | from eager | eager from float32 | gain on a GPU |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)
# By family and format: a step of a full-size model, eager's time by OneGraph's. From the tables of the same page.
MEASURED = {
    ("flux", "fp8 scaled"): "1.72x (H100)",
    ("qwen-image", "fp8 scaled"): "2.0x (H100, the fastest steps)",
    ("qwen-image", "int8 convrot"): "1.4x (H100, the fastest steps)",
    ("wan 2.1 t2v", "fp8 scaled"): "1.36x (H100)",
    ("z-image", "fp8 scaled"): "1.37x to 1.48x; half of it streamed 1.16x (H100)",
    ("z-image", "int8 convrot"): "1.24x (H100)",
}


def cells(row: dict[str, Any]) -> str:
    """A row as Markdown."""
    of = row["blocks"]
    streamed = f"{row['streamed']} of {of}, {row['brought']} brought"
    near = (f"{row[name]:.1e}" for name in ("from_eager", "eagers_own"))
    gain = MEASURED.get((row["family"], row["format"]), "not measured")
    return "| " + " | ".join([row["family"], row["format"], f"{row['resident']} of {of}", streamed, *near, gain]) + " |"


def table(rows: list[dict[str, Any]]) -> str:
    """All rows, families together, in the order of the tests."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    return "\n".join([*HEAD, *map(cells, sorted(rows, key=lambda row: families.index(row["family"])))])


def main() -> int:
    try:
        rows = json.loads(REPORT.read_text())
    except (OSError, ValueError) as error:
        print(f"no rows ({error}); run the tests first", file=sys.stderr)
        return 1
    PAGE.write_text(written(PAGE.read_text(), table(rows), BEGIN))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
