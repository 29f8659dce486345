"""DLLs of graphs for a GPU that is not here: whom they ask for what, held against Windows' own torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import windows_env
from headless import host
from support.models import dit_files
from support.windows.wine import facts

from onegraph.backends.inductor import absent_gpu, for_windows

WITHOUT_NAMES = {"aoti_torch_dtype", "torch_mps_set_arg_bytes"}  # macros, and Apple's


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of the blocks of a small Wan 2.1."""
    folder = tmp_path_factory.mktemp("baked")
    host.boot()
    dit_files.write("wan 2.1 t2v", folder / "wan.safetensors", folder / "lora.safetensors", "")
    words = ["bake", str(folder / "wan.safetensors"), "--target", "sm_89", "--platform", "windows", "--json"]
    command = [sys.executable, "-m", "onegraph.cli", *words, "--comfyui", str(host.comfyui_path())]
    env = {**os.environ, "ONEGRAPH_HOME": str(folder / "home")}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, check=True)
    (row,) = json.loads(done.stdout)["graphs"]
    with zipfile.ZipFile(Path(row["folder"]) / "graph.aoti") as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(".so")))


def imports(library: bytes, folder: Path) -> dict[str, list[str]]:
    """The functions that a DLL asks others for, by their names."""
    (folder / "asks.dll").write_bytes(library)
    command = ["x86_64-w64-mingw32-objdump", "-p", folder / "asks.dll"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for section in told.split("DLL Name: ")[1:]:
        dll, _, rows = section.partition("\n")
        found[dll] = re.findall(r"^\t[0-9a-f]+\t\s*\d+\s+(\S+)$", rows, re.MULTILINE)
    return found


def stand_in(dll: str, functions: list[str], folder: Path) -> None:
    """Write a DLL of that name whose functions do nothing."""
    source = folder / "stand_in.c"
    source.write_text("".join(f"__declspec(dllexport) void {name}(void) {{}}\n" for name in functions))
    subprocess.run([windows_env.COMPILER, "-x", "c", "-w", "-shared", "-o", folder / dll, source], check=True)


def test_a_library_finds_all_that_it_asks_torch_for(library: bytes, tmp_path: Path) -> None:
    asked = imports(library, tmp_path)
    lacking = [dll for dll in asked if dll.startswith(("cudart", "nvcuda", "torch_cuda"))]
    assert len(lacking) == 3 and len(asked["torch_cpu.dll"]) > 20
    folders = {}
    for name in ("alone", "whole"):  # a process has each DLL once, by its name
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / "graph.dll").write_bytes(library)
        for dll in lacking if name != "alone" else ():
            stand_in(dll, asked[dll], folders[name])
    found: dict[str, Any] = facts("load_cuda.py", *folders.values())
    assert len(found["whole"]["has"]) == 4, found
    assert "refused" in found["alone"], found


def test_functions_are_asked_of_the_dll_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's headers tell, held against the import library of its wheel for Windows."""
    monkeypatch.setenv("CUDA_HOME", str(absent_gpu.cuda_headers()))
    wheel = (windows_env.SITE / "torch" / "lib" / "torch_cpu.lib").read_bytes()
    there = {name.decode() for name in re.findall(rb"(?:\x00|__imp_)((?:aoti_)?torch_\w+)", wheel)}
    told = for_windows._functions(torch.device("cuda"))
    cpu, cuda = told["torch_cpu"][1], told["torch_cuda"][1]
    assert len(there) > 300 and len(cuda) > 100
    assert cpu - there == WITHOUT_NAMES
    assert not cuda & there
    assert {name for name in there if name.startswith("aoti_torch")} <= cpu
