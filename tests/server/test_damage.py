"""A process whose graph is cut short, and that finds no C++ compiler to make another one."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from headless import host, server, workflows
from support.comfyui.installation import Installation

from .conftest import CHECKPOINT, difference, graph_folders, txt2img


def test_a_damaged_graph_and_no_compiler(copied: Installation, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    alone = txt2img(seed=41, backend="inductor")
    for folder in (*graph_folders(copied.base), *copied.home.glob("graphs/unet/*")):
        for file in folder.glob("*.aoti"):
            file.write_bytes(file.read_bytes()[:1000])
    bare = {**copied.environment, "PATH": str(tmp_path / "bin"), "CXX": ""}
    with server.running(copied.base, host.comfyui_path(), env=bare) as third:
        eager = third.run(workflows.without_onegraph(alone))
        damaged = third.run(alone)
        assert damaged.status == "success"
        assert difference(eager, damaged) == 0
        assert re.match(r"eager: the cached graph is damaged: its file \w+\.aoti has 1000 bytes", damaged.text("2"))
        no_compiler = third.run(workflows.with_inputs(alone, "KSampler", seed=42))
        assert no_compiler.status == "success"
        assert no_compiler.text("2").startswith("eager: no C++ compiler (g++ or clang++) on PATH")
        assert third.status()["compiles"] == 0
        if importlib.util.find_spec("oneflow") is not None:
            chosen = txt2img(seed=44, backend="auto", when_missing="eager")
            result = third.run(chosen)
            assert difference(third.run(workflows.without_onegraph(chosen)), result) <= 2
            first = next(text for node, text in result.texts if node == "2")
            assert first.startswith("ready: any size, oneflow (no inductor: no C++ compiler")
            assert result.text("2").startswith("restored in ")
    assert CHECKPOINT in {p.name for p in copied.checkpoints.iterdir()}
