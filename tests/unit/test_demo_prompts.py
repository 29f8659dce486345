"""Prompts that the demo makes of the tests' workflows."""

from __future__ import annotations

from demo_prompts import decoding
from headless import workflows


def test_a_decode_needs_no_sampler() -> None:
    prompt = workflows.load("base_refiner")
    first, second = (decoding(prompt, number) for number in (2, 3))
    links = [value for node in first.values() for value in node["inputs"].values() if isinstance(value, list)]
    assert {node for node, _ in links} <= first.keys() and not workflows.samplers(first)
    assert first != second and workflows.nodes(first, "VAEDecode") == ["decoded"]
