"""Write the table of formats in docs/models.md from build/quantised.json: `.venv/bin/python tools/quantised.py`.

tests/host/blocks/test_quantised_blocks.py writes that file; `run_tests.py --no-lint --full blocks` gives all rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import measured
from faithfulness import ROOT, written

REPORT, PAGE = ROOT / "build" / "quantised.json", ROOT / "docs" / "models.md"
BEGIN = "<!-- written by tools/quantised.py: begin -->"
HEAD = (
    "| family | format | compiled: resident | paged | from uncompiled | uncompiled from float32 | gain on a GPU |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def gain(family: str, layers: str) -> str:
    """A step of a full-size model: eager's time by OneGraph's, the fastest steps."""
    ours = (one for one in measured.measured() if measured.KEYS.get(one.model) == family)
    found = next((one for one in ours if measured.FORMATS[one.weights] == f", {layers}"), None)
    return "not measured" if found is None else f"{found.step['eager'] / found.step['OneGraph']:.2f}x ({found.card})"


def cells(row: dict[str, Any]) -> str:
    """A row as Markdown."""
    of = row["blocks"]
    streamed = f"{row['streamed']} of {of}, {row['brought']} brought"
    near = (f"{row[name]:.1e}" for name in ("from_eager", "eagers_own"))
    return (
        "| "
        + " | ".join([row["family"], row["format"], f"{row['resident']} of {of}", streamed, *near])
        + f" | {gain(row['family'], row['format'])} |"
    )


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
