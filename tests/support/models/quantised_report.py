"""What became of the families in each of their formats: rows of build/quantised.json, for docs/models.md."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

REPORT = Path(__file__).resolve().parents[3] / "build" / "quantised.json"


@dataclass(frozen=True)
class Row:
    """A family in a format, on a CPU.

    Attributes:
        blocks: how many it has.
        resident: how many ran compiled, with all weights in place and with a LoRA on, stronger and off.
        streamed: how many ran compiled while there was room for half of the weights.
        brought: how many of these had their weights brought before they ran.
        from_eager: relative L2 of the worst sampling against eager's.
        eagers_own: of eager against the same with its blocks in float32.
    """

    family: str
    format: str
    blocks: int
    resident: int
    streamed: int
    brought: int
    from_eager: float
    eagers_own: float


def write(row: Row) -> None:
    """Add a row, or put it in the place of an earlier one."""
    before = json.loads(REPORT.read_text()) if REPORT.exists() else []
    rows = {(one["family"], one["format"]): one for one in [*before, asdict(row)]}
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps([*rows.values()], indent=1) + "\n")
