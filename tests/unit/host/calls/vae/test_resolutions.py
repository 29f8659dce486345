"""The rules of dynamic_resolution, without any VAE."""

from __future__ import annotations

import pytest

from onegraph.common.reasons import ResolutionVaries, SizeCameOnce
from onegraph.host.calls.vae.resolutions import DynamicResolution, Sizes

A, B, C, D, E = [(64 + i, 64) for i in range(5)]


def shapes(rule: DynamicResolution, *sizes: tuple[int, int], any_size: bool = True) -> list[str]:
    seen, decisions = Sizes(), []
    for size in sizes:
        seen.count(size)
        decisions.append(seen.decide(rule, size, any_size).shapes)
    return decisions


def test_any_size_is_one_graph_where_the_backend_can() -> None:
    assert shapes("any size", A, B, A) == ["any size"] * 3
    assert shapes("auto", A, B, A) == ["any size"] * 3


def test_any_size_is_a_graph_per_size_where_it_cannot() -> None:
    assert shapes("any size", A, B, any_size=False) == ["exact"] * 2


def test_each_size_is_a_graph_per_size() -> None:
    assert shapes("each size", A, B, A) == ["exact"] * 3


@pytest.mark.parametrize("any_size", [True, False])
def test_skip_compiles_nothing_while_resolutions_vary(any_size: bool) -> None:
    assert shapes("skip", A, B, C, A, A, A, any_size=any_size) == ["none"] * 6


def test_skip_compiles_for_a_workflow_of_one_size() -> None:
    assert shapes("skip", A, A, A) == ["none", "exact", "exact"]
    assert shapes("skip", A, A, B, A) == ["none", "exact", "none", "none"]


def test_auto_without_ranges_compiles_repeated_sizes() -> None:
    assert shapes("auto", A, A, B, B, any_size=False) == ["none", "exact", "none", "exact"]
    assert shapes("auto", A, B, C, D, E, A, any_size=False) == ["none"] * 6


def test_the_rule_says_why() -> None:
    seen = Sizes()
    seen.count(A)
    assert seen.decide("skip", A, True).why == SizeCameOnce("skip")
    seen.count(B)
    seen.count(C)
    assert seen.decide("skip", C, True).why == ResolutionVaries("skip", 3)
