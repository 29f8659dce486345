"""Medians of the demo's times."""

from __future__ import annotations

import pytest
from demo_times import Times, of_media, steps
from headless import server


def test_steps_are_the_times_between_a_samplers_ticks() -> None:
    prompt = {
        "base": {"class_type": "KSamplerAdvanced", "inputs": {"model": ["1", 0]}},
        "refiner": {"class_type": "KSampler", "inputs": {"model": ["2", 0]}},
    }
    ticks = [
        (1, 2, 9.0, "base"), (2, 2, 9.5, "base"), (500, 1000, 9.6, "refiner"),
        (1, 3, 20.0, "refiner"), (2, 3, 20.25, "refiner"), (3, 3, 20.75, "refiner"), (1, 1, 30.0, "another"),
    ]  # fmt: skip
    took = steps(prompt, server.Outcome("success", ticks=ticks), lambda link: str(link[0]))
    assert took == {"1": [500.0], "2": [250.0, 500.0]}


def test_a_texts_message_of_progress_stands_for_all_tokens_since_the_last() -> None:
    ticks = [(1, 64, 3.0, "write"), (3, 64, 5.0, "write"), (23, 64, 5.1, "write"), (64, 64, 5.51, "write")]
    outcome = server.Outcome("success", ticks=[*ticks, (64, 64, 5.6, "write"), (5, 9, 6.0, "another")])
    assert of_media(outcome) == {"video": [], "text": pytest.approx([5.0, 10.0])}


def test_one_slow_step_among_several_changes_no_speed() -> None:
    times = Times(("base", "refiner"))
    times.add("eager", {"base": [100.0, 101.0], "refiner": [7.0]}, ("base",))
    times.add("eager", {"base": [900.0]}, ("base", "refiner"))
    assert times.samples == {"base": {"eager": [100.0, 101.0, 900.0]}, "refiner": {}}
    assert (times.median("base", "eager"), times.median("refiner", "eager")) == (101.0, None)
