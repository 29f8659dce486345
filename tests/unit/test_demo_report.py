"""The page that `make demo` ends with, from figures as the demo writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import demo_report
import numpy as np
import pytest
from PIL import Image
from support.page import figures


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    return figures.of_a_demo(tmp_path)


def test_images_stand_beside_uncompiled_ones_with_their_difference(report: dict[str, Any], tmp_path: Path) -> None:
    restart, again = demo_report.page_of(report, tmp_path).comparisons
    assert [picture.caption for picture in again.pictures] == [
        "uncompiled",
        "compiled, again",
        "difference, 85 times brighter",
    ]
    assert again.text.startswith("Largest difference 3 of 255 in any channel; 99.93 % of the pixels are equal.")
    drawn = again.pictures[2].png
    (tmp_path / "drawn.png").write_bytes(drawn)
    difference = np.asarray(Image.open(tmp_path / "drawn.png"))
    assert difference[5, 7] == 255 and difference.sum() == 255
    assert restart.pictures[2].caption == "difference: none"
    assert "100.00 % of the pixels are equal" in restart.text


def test_the_first_figures_and_what_is_not_there(report: dict[str, Any], tmp_path: Path) -> None:
    page = demo_report.page_of(report, tmp_path)
    assert [tile.value for tile in page.tiles] == ["60 s", "0.50 s", "0", "2.0x", "3 of 255"]
    assert [group.label for chart in page.bars for group in chart.groups] == [
        "UNet of the base, a step: 2.0x faster", "UNet of the base",
    ]  # fmt: skip
    report["restore_s"] = None  # ran uncompiled after the restart: the demo then fails, and its page says so
    report["restore_all_s"] = 0
    assert "not restored" in demo_report.html(demo_report.page_of(report, tmp_path))


def test_noise_of_random_weights_is_explained(report: dict[str, Any], tmp_path: Path) -> None:
    assert "CHECKPOINT=model.safetensors make demo" in demo_report.page_of(report, tmp_path).images_note
    report["random_weights"] = False
    assert demo_report.page_of(report, tmp_path).images_note == ""


def test_speeds_say_of_how_many_times_they_are(report: dict[str, Any], tmp_path: Path) -> None:
    labels = [bar.label for bar in demo_report.page_of(report, tmp_path).bars[0].groups[0].bars]
    assert labels == ["uncompiled, median of 3", "compiled, median of 3"]
    assert demo_report.speeds_text(report) == "base step 2.0x faster (medians of 3 and 3)"


def test_a_busy_machine_is_told(report: dict[str, Any], tmp_path: Path) -> None:
    report["load_average"] = 5.25
    report["samples_ms"]["base"]["compiled"] = [480.0, 500.0, 2400.0]
    busy = (
        "The machine was busy, so that speeds may be wrong: the load average was 5.2 on 2 cores before the demo began; "
        "UNet of the base, a step, compiled, took 480 to 2400 ms."
    )
    assert demo_report.busy_text(report) == busy
    assert busy in demo_report.write(report, tmp_path, tmp_path / "report.html").read_text()


def test_time_lines_of_both_processes(report: dict[str, Any], tmp_path: Path) -> None:
    first, second = demo_report.page_of(report, tmp_path).timelines
    assert [lane.label for lane in first.lanes] == ["ComfyUI starts", "uncompiled", "compiling", "compiled, again"]
    assert [(span.what, span.start, span.end) for span in first.lanes[2].spans] == [
        ("compile", 20.0, 80.0),
        ("compiled", 80.0, 90.0),
    ]
    assert [(span.what, span.start, span.end) for span in second.lanes[1].spans] == [
        ("restore", 8.0, 8.5),
        ("compiled", 8.5, 18.0),
    ]
    assert first.end == 101.0


def test_the_page_is_written(report: dict[str, Any], tmp_path: Path) -> None:
    text = demo_report.write(report, tmp_path, tmp_path / "report.html").read_text()
    assert text.count("data:image/png;base64,") == 6
    assert not re.search(r'(?:src|href)="(?!data:)', text)
    assert text.count(' alt="') == 6 and '<svg class="chart"' in text
    assert str(tmp_path) not in text


def test_what_is_told_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (demo_report.host.comfyui_path() / "comfyui_version.py").is_file():
        pytest.skip("no ComfyUI is here")
    monkeypatch.setenv("CHECKPOINT", "/home/somebody/models/photo.safetensors")
    monkeypatch.delenv("REFINER", raising=False)
    told = demo_report.surroundings("oneflow", {"base": "photo.safetensors"})
    assert told["command"] == "CHECKPOINT=photo.safetensors BACKEND=oneflow make demo"
    assert {"CPU", "Python", "torch", "ComfyUI", "OneGraph", "checkpoint, base"} <= {name for name, _ in told["facts"]}
