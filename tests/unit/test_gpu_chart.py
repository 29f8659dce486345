"""docs/pictures/gpu.svg is what tools/gpu_chart.py draws of benchmarks/results, and says what the docs' tables say."""

from __future__ import annotations

import gpu_chart


def test_the_chart_is_up_to_date() -> None:
    assert gpu_chart.FILE.read_text(encoding="utf-8") == gpu_chart.chart()
    assert gpu_chart.FILE.stat().st_size < 200_000


def test_its_steps_are_those_of_the_tables() -> None:
    docs = gpu_chart.host.ROOT / "docs"
    tables = (docs / "models.md").read_text() + (docs / "benchmarks.md").read_text()
    for group in gpu_chart.steps().groups:
        assert group.bars[0].label == "eager" and group.bars[-1].label == "OneGraph"
        for bar in group.bars:
            assert bar.value is not None
            assert f"{bar.value:.1f}" in tables or f"{bar.value:.0f}" in tables, (group.label, bar)
    for group in gpu_chart.starts().groups:
        torch, ours = group.bars
        assert torch.value is not None and ours.value is not None and torch.value > ours.value
