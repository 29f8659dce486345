"""The page that `make demo` ends with, from figures as the demo writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import demo_report
import numpy as np
import pytest
from PIL import Image

from onegraph.cli.report import render


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    """Of a demo with one component, whose compiled image differs in one pixel by 3."""
    rows, columns = np.mgrid[0:32, 0:48]
    eager = np.stack([rows * 4, columns * 4, rows + columns], axis=2).astype("uint8")
    other = eager.copy()
    other[5, 7, 1] += 3
    for name, pixels in {"eager.png": eager, "again.png": other, "restart.png": eager}.items():
        Image.fromarray(pixels).save(tmp_path / name)

    def item(name: str, start: float, file: str = "", **more: Any) -> dict[str, Any]:
        ms = {"base": 500.0, "refiner": None, "decoder": None, "encoder": None}
        known = {"compile_s": 0.0, "restore_s": 0.0, "reference": "", "largest_difference": None, "text": "base: text"}
        images = {"onegraph": file} if file else {}
        process = "after the restart" if name.startswith("after") else "first process"
        return {"name": name, "process": process, "start_s": start, "seconds": 10.0, "ms": ms, "images": images,
                **known, **more}  # fmt: skip

    fields = {field: None for pairs in demo_report.FIELDS.values() for pair in pairs for field in pair}
    return {
        **fields,
        "eager_step_ms": 1000.0, "compiled_step_ms": 500.0, "compile_s": 60.0, "restore_s": 0.5,
        "restore_all_s": 0.5, "compiles_after_restart": 0, "max_abs_diff_255": 3, "sizes_rendered": ["48x32"],
        "processes": [{"name": "first process", "ready_s": 9.0}, {"name": "after the restart", "ready_s": 8.0}],
        "queue_items": [
            item("eager", 9.0, "eager.png"),
            item("compiling", 20.0, seconds=70.0, compile_s=60.0),
            item("compiled, again", 91.0, "again.png", reference="eager", largest_difference=3),
            item("after the restart", 8.0, "restart.png", restore_s=0.5, reference="eager", largest_difference=0),
        ],
        "facts": [["torch", "2.14.1"]],
        "command": "make demo",
    }  # fmt: skip


def test_images_stand_beside_eagers_with_their_difference(report: dict[str, Any], tmp_path: Path) -> None:
    again, restart = demo_report.page_of(report, tmp_path).comparisons
    assert [picture.caption for picture in again.pictures] == [
        "eager",
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
    assert [tile.value for tile in page.tiles] == ["60 s", "0.50 s", "0", "2.00x", "3 of 255"]
    assert [group.label for chart in page.bars for group in chart.groups] == [
        "UNet of the base, a step (2.00x)", "UNet of the base",
    ]  # fmt: skip
    report["restore_s"] = None  # ran eager after the restart: the demo then fails, and its page says so
    report["restore_all_s"] = 0
    assert "not restored" in render(demo_report.page_of(report, tmp_path))


def test_time_lines_of_both_processes(report: dict[str, Any], tmp_path: Path) -> None:
    first, second = demo_report.page_of(report, tmp_path).timelines
    assert [lane.label for lane in first.lanes] == ["ComfyUI starts", "eager", "compiling", "compiled, again"]
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
    assert str(tmp_path) not in text


def test_what_is_told_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (demo_report.host.comfyui_path() / "comfyui_version.py").is_file():
        pytest.skip("no ComfyUI is here")
    monkeypatch.setenv("CHECKPOINT", "/home/somebody/models/photo.safetensors")
    monkeypatch.delenv("REFINER", raising=False)
    told = demo_report.surroundings("oneflow", {"base": "photo.safetensors"})
    assert told["command"] == "CHECKPOINT=photo.safetensors BACKEND=oneflow make demo"
    assert {"CPU", "Python", "torch", "ComfyUI", "OneGraph", "checkpoint, base"} <= {name for name, _ in told["facts"]}
