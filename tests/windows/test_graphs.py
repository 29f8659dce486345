"""Graphs that Linux compiled for Windows: loaded, run, unloaded; what is no such graph is refused without a crash."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import windows_env
from support.models import toy
from support.windows.crossing import FARTHEST, SIZES, compile_for_windows
from support.windows.wine import facts

WITHOUT_INTERFACE = "__declspec(dllexport) int nothing(void) { return 0; }\n"


def with_library(graph: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the library in a graph's archive."""
    with zipfile.ZipFile(graph) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    (library,) = [name for name in contents if name.endswith(".so")]
    contents[library] = change(contents[library])
    with zipfile.ZipFile(graph, "w", zipfile.ZIP_STORED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def linked(source: str, folder: Path, compiler: str) -> bytes:
    (folder / "source.c").write_text(source)
    subprocess.run([compiler, "-x", "c", "-shared", "-o", folder / "out", folder / "source.c"], check=True)
    return (folder / "out").read_bytes()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of each graph, in one process."""
    home = tmp_path_factory.mktemp("crossed")
    assert compile_for_windows(toy.Toy(), home / "whole") == ["graph.aoti"]
    assert "plan.json" in compile_for_windows(toy.Deep(), home / "regions")
    strange = {
        "damaged": lambda data: data[: len(data) // 2],
        "garbage": lambda data: data[:4096] + bytes(len(data) - 4096),
        "of_linux": lambda data: linked("int nothing(void) { return 0; }\n", home, "gcc"),
        "without_interface": lambda data: linked(WITHOUT_INTERFACE, home, windows_env.COMPILER),
    }
    for name, change in strange.items():
        shutil.copytree(home / "whole", home / name)
        with_library(home / name / "graph.aoti", change)
    (home / "nothing").mkdir()
    names = ["whole", "regions", *strange, "nothing"]
    return facts("run_graphs.py", *(home / name for name in names))


@pytest.mark.parametrize(("name", "regions"), [("whole", 1), ("regions", 9)])
def test_a_graph_computes_what_eager_does(name: str, regions: int, results: dict[str, Any]) -> None:
    found = results[name]
    assert len(found["far"]) == len(SIZES) and max(found["far"]) < FARTHEST
    assert (found["by"], found["regions"]) == (["Container"], regions)


@pytest.mark.parametrize("name", ["whole", "regions"])
def test_a_graph_that_is_closed_leaves_no_file(name: str, results: dict[str, Any]) -> None:
    """Its DLL could not be removed while it is loaded."""
    assert results[name]["while_loaded"] > 0
    assert (results[name]["left"], results[name]["removed"]) == (0, True)


@pytest.mark.parametrize("name", ["damaged", "garbage", "of_linux", "without_interface", "nothing"])
def test_what_is_no_graph_is_refused(name: str, results: dict[str, Any]) -> None:
    """With a sentence, and the process goes on to the next one."""
    refused = results[name]["refused"]
    assert "runs uncompiled" in refused and str(Path.home()) not in refused and "Z:" not in refused
    assert (results[name]["left"], results[name]["removed"]) == (0, True)
