"""Figures as a demo writes them, and its images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import demo_report
import numpy as np
from PIL import Image


def of_a_demo(folder: Path) -> dict[str, Any]:
    """Figures of a demo with one component, whose compiled image differs in one pixel by 3."""
    rows, columns = np.mgrid[0:32, 0:48]
    eager = np.stack([rows * 4, columns * 4, rows + columns], axis=2).astype("uint8")
    other = eager.copy()
    other[5, 7, 1] += 3
    for name, pixels in {"uncompiled.png": eager, "again.png": other, "restart.png": eager}.items():
        Image.fromarray(pixels).save(folder / name)

    def item(name: str, start: float, file: str = "", **more: Any) -> dict[str, Any]:
        ms = {**dict.fromkeys(demo_report.COMPONENTS), "base": 500.0}
        known = {"compile_s": 0.0, "restore_s": 0.0, "reference": "", "largest_difference": None, "text": "base: text"}
        known["same_text"] = None
        images = {"onegraph": file} if file else {}
        process = "after the restart" if name.startswith("after") else "first process"
        return {"name": name, "process": process, "start_s": start, "seconds": 10.0, "ms": ms, "images": images,
                **known, **more}  # fmt: skip

    fields = {field: None for pairs in demo_report.FIELDS.values() for pair in pairs for field in pair}
    return {
        **fields,
        "eager_step_ms": 1000.0, "compiled_step_ms": 500.0, "compile_s": 60.0, "restore_s": 0.5,
        "restore_all_s": 0.5, "compiles_after_restart": 0, "max_abs_diff_255": 3, "sizes_rendered": ["48x32"],
        "size_encoded": "32x32", "random_weights": True,
        "processes": [{"name": "first process", "ready_s": 9.0}, {"name": "after the restart", "ready_s": 8.0}],
        "queue_items": [
            item("uncompiled", 9.0, "uncompiled.png"),
            item("compiling", 20.0, seconds=70.0, compile_s=60.0),
            item("compiled, again", 91.0, "again.png", reference="uncompiled", largest_difference=3),
            item("after the restart", 8.0, "restart.png", restore_s=0.5, reference="uncompiled", largest_difference=0),
        ],
        "samples_ms": {"base": {"eager": [990.0, 1000.0, 1100.0], "compiled": [480.0, 500.0, 520.0]}},
        "load_average": 0.4, "cores": 2,
        "facts": [["torch", "2.14.1"]],
        "command": "make demo",
    }  # fmt: skip
