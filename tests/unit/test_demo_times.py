"""Medians of the demo's times."""

from __future__ import annotations

from demo_times import Times, steps
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


def test_one_slow_step_among_several_changes_no_speed() -> None:
    times = Times(("base", "refiner"))
    times.add("eager", {"base": [100.0, 101.0], "refiner": [7.0]}, ("base",))
    times.add("eager", {"base": [900.0]}, ("base", "refiner"))
    assert times.samples == {"base": {"eager": [100.0, 101.0, 900.0]}, "refiner": {}}
    assert (times.median("base", "eager"), times.median("refiner", "eager")) == (101.0, None)
