"""docs/pictures/gpu.svg is what tools/gpu_chart.py draws of benchmarks/results, and says what README's table says."""

from __future__ import annotations

import figures
import gpu_chart


def test_the_chart_is_up_to_date() -> None:
    assert gpu_chart.FILE.read_text(encoding="utf-8") == gpu_chart.chart()
    assert gpu_chart.FILE.stat().st_size < 200_000


def test_its_steps_are_those_of_the_tables() -> None:
    table = (gpu_chart.host.ROOT / "README.md").read_text(encoding="utf-8")
    for group in gpu_chart.steps().groups:
        assert group.bars[0].label == "uncompiled" and group.bars[-1].label == "OneGraph"
        for bar in group.bars:
            assert bar.value is not None and figures.number(bar.value) in table, (group.label, bar)
    for group in gpu_chart.starts().groups:
        torch, ours = group.bars
        assert torch.value is not None and ours.value is not None and torch.value > ours.value
