"""Families of diffusion transformers with what people add: the latent is eager's, and blocks run as promised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headless import host
from support.comfyui.shared_graphs import SharedGraphs, dit_graphs
from support.dit_matrix.case import Case
from support.dit_matrix.judge import Families, problems
from support.dit_matrix.table import CASES

from onegraph.runtime.counters import Counters

REPORT = host.ROOT / "build" / "families.json"


@pytest.fixture(scope="module")
def families() -> Families:
    return Families()


def _rows() -> Iterator[Any]:
    for case in CASES:
        yield pytest.param(case, id=case.label, marks=[pytest.mark.full] if case.full else [])


@pytest.mark.parametrize("case", list(_rows()))
def test_the_latent_is_eagers_and_blocks_run_as_promised(
    case: Case, families: Families, graphs_home: Path, shared_graphs: SharedGraphs, counters: Counters
) -> None:
    calling = (f"dit {case.family} calling attention",) if case.calls_attention else ()
    shared_graphs.give(graphs_home, None, *dit_graphs(case.family), *calling)
    row = families.run(case)
    families.write(REPORT)  # what was seen outlives a run that is stopped
    assert list(problems(case, row)) == [], row
    assert counters.compiles == 0
