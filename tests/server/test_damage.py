"""A process whose graph is cut short, and that finds no C++ compiler to make another one."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from headless import host, server, workflows

from .conftest import CHECKPOINT, difference, environment_of, graph_folders, txt2img


@pytest.fixture
def copied(base: Path, environment: dict[str, str], tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A base directory and an environment of this test's own, with the same graphs."""
    shutil.copytree(base / "models", tmp_path / "comfyui" / "models")
    shutil.copytree(environment["ONEGRAPH_HOME"], tmp_path / "home")
    return tmp_path / "comfyui", environment_of(tmp_path / "home")


def test_a_damaged_graph_and_no_compiler(copied: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    base, environment = copied
    (tmp_path / "bin").mkdir()
    alone = txt2img(seed=41, backend="inductor")
    for folder in (*graph_folders(base), *(tmp_path / "home").glob("graphs/unet/*")):
        for file in folder.glob("*.aoti"):
            file.write_bytes(file.read_bytes()[:1000])
    bare = {**environment, "PATH": str(tmp_path / "bin"), "CXX": ""}
    with server.running(base, host.comfyui_path(), env=bare) as third:
        eager = third.run(workflows.without_onegraph(alone))
        damaged = third.run(alone)
        assert damaged.status == "success"
        assert difference(eager, damaged) == 0
        assert re.match(
            r"uncompiled: the cached graph is damaged: its file \w+\.aoti has 1000 bytes", damaged.text("2")
        )
        no_compiler = third.run(workflows.with_inputs(alone, "KSampler", seed=42))
        assert no_compiler.status == "success"
        assert no_compiler.text("2").startswith("uncompiled: no C++ compiler (g++ or clang++) on PATH")
        assert third.status()["compiles"] == 0
        if importlib.util.find_spec("oneflow") is not None:
            chosen = txt2img(seed=44, backend="auto", when_missing="eager")
            result = third.run(chosen)
            assert difference(third.run(workflows.without_onegraph(chosen)), result) <= 2
            first = next(text for node, text in result.texts if node == "2")
            assert first.startswith("ready: any size, oneflow (no inductor: no C++ compiler")
            assert result.text("2").startswith("restored in ")
    assert CHECKPOINT in {p.name for p in (base / "models/checkpoints").iterdir()}
