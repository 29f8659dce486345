"""When blocks are called without what was kept of their modulation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.models import toy_blocks

from onegraph.common.reasons import BlockRecorded, BlockSmall, Reason
from onegraph.runtime.calls.kept_modulation import KeptModulation


@pytest.mark.parametrize(
    ("without", "graph", "refusal", "gives_up"),
    [
        (("modulation",), None, BlockSmall("3 operations"), True),
        (("modulation",), None, BlockRecorded(), False),  # it is compiled after this call
        (("modulation",), object(), None, False),
        ((), None, BlockSmall("3 operations"), False),
    ],
)
def test_a_kind_that_no_graph_serves_for_what_it_is_given(
    without: tuple[str, ...], graph: Any, refusal: Reason | None, gives_up: bool
) -> None:
    kept: Any = KeptModulation(toy_blocks.Client())
    name = f"of this test, {without}, {graph}, {refusal}"  # what is known is known to all runs
    guard = SimpleNamespace(architecture=lambda skeleton: name)
    one: Any = SimpleNamespace(
        kinds=[SimpleNamespace(without=without, graph=graph, refusal=refusal)], guard=guard, skeleton=None
    )
    assert kept.gave_up(one) is gives_up
    assert (kept._known.get(name) == ()) is gives_up
    assert not kept.gave_up(SimpleNamespace(kinds=[]))
