"""The store's table of file names is what the backends write."""

from __future__ import annotations

import pytest

from onegraph import backends
from onegraph.backends.inductor import packages
from onegraph.backends.oneflow import graph, program
from onegraph.graph_cache.file_names import WRITTEN

NAMES = {
    "inductor": [packages.GRAPH_FILE, packages.PLAN_FILE, packages.region_file(0), packages.region_file(1234)],
    "oneflow": [graph.JOB_FILE, graph.DESCRIPTION_FILE, program.PROGRAM_FILE],
}


@pytest.mark.parametrize("backend", sorted(NAMES))
def test_the_store_expects_what_is_written(backend: str) -> None:
    assert [name for name in NAMES[backend] if not WRITTEN[backend].fullmatch(name)] == []


def test_every_backend_is_in_the_table() -> None:
    assert sorted(WRITTEN) == sorted(NAMES) == sorted(backends.known())
