"""What a run tells of its blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.runtime.calls.run_report import BlockReport


def graph(eager_ms: float | None, compiled_ms: float | None) -> Any:
    timed = FirstUse(eager_ms=eager_ms, compiled_ms=compiled_ms)
    return SimpleNamespace(origin="restored", fresh=False, first_use=SimpleNamespace(result=timed))


def test_graphs_count_by_their_calls() -> None:
    report, graphs = BlockReport(), [graph(4.0, 1.0), graph(2.0, 2.0)]
    for one, calls in zip(graphs, (1, 3), strict=True):
        report.note_graph(one, 0.0)
        for _ in range(calls):
            report.served(one, "a block")
    assert report.speedup == (4.0 + 3 * 2.0) / (1.0 + 3 * 2.0)
    report.served(graphs[0], "a block", streamed=1)
    assert report.speedup is None


@pytest.mark.parametrize("timed", [(None, 1.0), (1.0, None), (None, None)])
def test_nothing_is_told_where_a_graph_was_not_timed(timed: tuple[float | None, float | None]) -> None:
    report, graphs = BlockReport(), [graph(4.0, 1.0), graph(*timed)]
    for one in graphs:
        report.note_graph(one, 0.0)
        report.served(one, "a block")
    assert report.speedup is None


def test_nothing_is_told_where_nothing_ran() -> None:
    assert BlockReport().speedup is None
