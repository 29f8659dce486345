"""What users see of a compile: never backwards, learnt from earlier ones, and no worse for a damaged file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onegraph.compiler.process.progress import STAGES, Estimate, expected, per_weight

EXPECTED = {"starting": 2.0, "capturing": 4.0, "compiling": 20.0, "checking": 1.0}


def test_a_compile_that_goes_as_expected_counts_evenly() -> None:
    estimate = Estimate(EXPECTED)
    assert estimate.at("starting", 1).share == pytest.approx(1 / 27)
    assert estimate.at("capturing", 4).share == pytest.approx(2 / 27)  # of a stage that has only just begun
    assert estimate.at("compiling", 6).share == pytest.approx(6 / 27)
    assert estimate.at("compiling", 16).share == pytest.approx(16 / 27)
    assert estimate.at("compiling", 16).remaining == pytest.approx(11)


def test_regions_done_sooner_than_expected_count() -> None:
    estimate = Estimate(EXPECTED)
    for stage, seconds in (("starting", 2), ("capturing", 6)):
        estimate.at(stage, seconds)
    before = estimate.at("compiling", 6.1)
    after = estimate.at("compiling", 6.2, regions_done=0.5)
    assert after.share == pytest.approx((6 + 10) / 27)
    assert after.remaining < before.remaining - 5


def test_a_stage_that_takes_longer_never_looks_done() -> None:
    estimate = Estimate(EXPECTED)
    for stage, seconds in (("starting", 2), ("capturing", 6)):
        estimate.at(stage, seconds)
    shares = [estimate.at("compiling", 6 + seconds).share for seconds in range(0, 200, 5)]
    assert shares == sorted(shares)
    assert shares[-1] < 26.001 / 27


def test_a_stage_that_takes_far_longer_is_told_so() -> None:
    estimate = Estimate(EXPECTED)
    told = [estimate.at("starting", 2), estimate.at("capturing", 3), estimate.at("capturing", 12)]
    told += [estimate.at("compiling", 13), estimate.at("checking", 33.9)]
    lefts = ["about 25 s left", "about 25 s left", "longer than expected", "about 25 s left", "about 1 s left"]
    assert [one.left for one in told] == lefts


@given(
    st.lists(st.floats(0.01, 50), min_size=4, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 30), st.floats(0, 1)), max_size=40),
)
def test_it_never_goes_backwards(expected: list[float], heard: list[tuple[int, float, float]]) -> None:
    estimate = Estimate(dict(zip(STAGES, expected, strict=True)))
    share, remaining, seconds, stage = 0.0, float("inf"), 0.0, 0
    for further, passed, parts in heard:
        seconds, stage = seconds + passed, max(stage, further)
        told = estimate.at(STAGES[stage], seconds, parts)
        assert share <= told.share <= 1
        assert 0 <= told.remaining <= remaining
        share, remaining = told.share, told.remaining


def test_stages_add_up_to_the_whole() -> None:
    estimate = Estimate(EXPECTED)
    for stage, seconds in (("starting", 0.5), ("capturing", 2.5), ("compiling", 7.0), ("checking", 19.0)):
        estimate.at(stage, seconds)
    estimate.finish(20.0)
    assert estimate.stages == {"starting": 2.5, "capturing": 4.5, "compiling": 12.0, "checking": 1.0}


def test_the_last_compile_is_the_next_estimate() -> None:
    stages = {"starting": 3.0, "capturing": 5.0, "compiling": 30.0, "checking": 1.0}
    known = per_weight(stages, 100)
    assert expected(known, 100) == stages
    assert expected(known, 200) == {"starting": 3, "capturing": 10, "compiling": 60, "checking": 1}
    assert expected({}, 100) != expected(known, 100)


def test_unknown_stages_take_their_typical_time() -> None:
    assert expected({"compiling": 1.0}, 50) == {**expected({}, 50), "compiling": 50.0}
