"""Graphs for GPUs that are not here, of a model's file and without its weights: made, found again, and refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host
from support.fleet.servers import http_server, ranges
from support.models import dit_files
from support.processes import command

from onegraph.backends.inductor import absent_gpu, machine_code
from onegraph.common.errors import CompileError, LoadError
from onegraph.graph_cache.key import AT_LEAST
from onegraph.graph_cache.store import Store

TARGETS = {"sm_86": (8, 6), "sm_120": (12, 0)}


class Baked:
    """What `onegraph bake` made of a small file of Wan 2.1, for two GPUs."""

    def __init__(self, folder: Path) -> None:
        self.file, self.home = folder / "wan.safetensors", folder / "home"
        dit_files.write("wan 2.1 t2v", self.file, folder / "lora.safetensors", "")
        self.code, self.rows = self.bake(self.file, ",".join(TARGETS))
        if shutil.which("x86_64-w64-mingw32-g++") is not None:
            self.windows = self.bake(self.file, "sm_86", "windows")

    def bake(
        self, file: Path, targets: str, platforms: str = "linux", **environ: str
    ) -> tuple[int, list[dict[str, Any]]]:
        where = [*(["--target", targets] if targets else []), *(["--platform", platforms] if platforms else [])]
        arguments = ["bake", str(file), *where, "--comfyui", str(host.comfyui_path()), "--json"]
        done = command.run(*arguments, ONEGRAPH_HOME=str(self.home), **environ)
        return done.code, json.loads(done.out)["graphs"] if done.out else [{"text": done.errors}]


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Baked:
    return Baked(tmp_path_factory.mktemp("baked"))


def test_each_kind_of_block_has_a_graph_for_each_gpu(baked: Baked) -> None:
    assert baked.code == 0, baked.rows
    found = sorted((row["event"], row["target"], row["label"]) for row in baked.rows)
    assert found == sorted(("baked", target, "WanAttentionBlock") for target in TARGETS)
    entries = {str(one.folder): one for one in Store(baked.home).entries()}
    for row in baked.rows:
        manifest = entries[row["folder"]].manifest
        capability = TARGETS[row["target"]]
        assert manifest.key["target"] == {
            "torch": AT_LEAST, "platform": "linux", "machine": "x86_64", "device": "cuda",
            "cuda": str(torch.version.cuda).partition(".")[0], "capability": ".".join(map(str, capability)),
        }  # fmt: skip
        assert manifest.at_least == {"torch": ".".join(torch.__version__.split(".")[:2])}
        assert manifest.unmeasured and not manifest.cuda_graphs
        assert manifest.code is not None and manifest.call_rules is not None
        named = {**manifest.code.references, **dict.fromkeys(manifest.code.functions, "")}
        assert not [one for one in named.items() if "onegraph" in str(one)]  # which no other machine would find
        assert machine_code.architectures(Path(row["folder"]) / "graph.aoti") == {capability}


def test_a_library_asks_for_the_driver_and_names_the_weights(baked: Baked) -> None:
    folder = Path(baked.rows[0]["folder"])
    constants = {one["name"] for one in json.loads((folder / "constants.json").read_text())["constants"]}
    assert "module.self_attn.q.weight" in constants
    weights = dict.fromkeys(constants)
    assert {
        *machine_code.check(folder, TARGETS[baked.rows[0]["target"]], "linux", {**weights, "module.no.weight": None})
    } == (constants)


DIES_WHILE_IT_COMPILES = """
import os, sys
from pathlib import Path
from onegraph.graph_cache.store import Store
compiling = Store(Path(sys.argv[1])).staging()
print(compiling.__enter__(), flush=True)
os._exit(1)
"""


def test_what_is_there_is_not_baked_again_and_what_a_killed_bake_left_goes(baked: Baked) -> None:
    dying = [sys.executable, "-c", DIES_WHILE_IT_COMPILES, str(baked.home)]
    left = Path(subprocess.run(dying, stdout=subprocess.PIPE, text=True, check=False).stdout.strip())
    assert left.is_dir()
    code, rows = baked.bake(baked.file, "sm_86")
    assert (code, {row["event"] for row in rows}) == (0, {"found"})
    assert not left.exists()


needs_mingw = pytest.mark.skipif(shutil.which("x86_64-w64-mingw32-g++") is None, reason="needs mingw-w64")


@needs_mingw
def test_a_graph_for_windows_is_a_dll_that_asks_for_what_windows_has(baked: Baked, tmp_path: Path) -> None:
    code, rows = baked.windows
    assert (code, [(row["event"], row["platform"]) for row in rows]) == (0, [("baked", "windows")])
    folder = Path(rows[0]["folder"])
    target = next(one for one in Store(baked.home).entries() if one.folder == folder).manifest.key["target"]
    assert (target["platform"], target["machine"], target["capability"]) == ("windows", "AMD64", "8.6")
    constants = {one["name"] for one in json.loads((folder / "constants.json").read_text())["constants"]}
    assert {*machine_code.check(folder, (8, 6), "windows", dict.fromkeys(constants))} == constants
    with pytest.raises(CompileError, match="none of linux's"):
        machine_code.check(folder, (8, 6), "linux", {})
    with zipfile.ZipFile(folder / "graph.aoti") as archive:
        (library,) = [name for name in archive.namelist() if name.endswith(".so")]
        (tmp_path / "graph.dll").write_bytes(archive.read(library))
    objdump = ["x86_64-w64-mingw32-objdump", "-p", str(tmp_path / "graph.dll")]
    told = subprocess.run(objdump, capture_output=True, text=True, check=True).stdout
    major = str(torch.version.cuda).partition(".")[0]
    assert {*re.findall(r"DLL Name: (\S+)", told)} == {
        "torch_cpu.dll", "torch_cuda.dll", f"cudart64_{major}.dll", "nvcuda.dll", "KERNEL32.dll", "msvcrt.dll",
    }  # fmt: skip
    assert "aoti_torch_cuda__scaled_dot_product_efficient_attention" in told  # wheels for Windows have no flash


def test_a_library_names_no_folder_of_this_machine(baked: Baked) -> None:
    for row in [*baked.rows, *(getattr(baked, "windows", (0, []))[1])]:
        with zipfile.ZipFile(Path(row["folder"]) / "graph.aoti") as archive:
            for name in archive.namelist():
                data = archive.read(name)
                named = [
                    one
                    for one in (str(Path(torch.__file__).parents[1]), "/tmp", "torchinductor")
                    if one.encode() in data
                ]
                assert not named, f"{name} names {named}"


def without_driver(data: bytes) -> bytes:
    return data.replace(b"libcuda.so.1\0", b"libcuda.no.1\0")


@pytest.mark.parametrize(
    ("capability", "change", "said"),
    [((8, 9), bytes, "machine code for 8.6 in place of 8.9"), ((8, 6), without_driver, "does not ask for NVIDIA's")],
)
def test_code_for_another_machine_is_refused(
    capability: tuple[int, int], change: Callable[[bytes], bytes], said: str, baked: Baked, tmp_path: Path
) -> None:
    folder = Path(next(row["folder"] for row in baked.rows if row["target"] == "sm_86"))
    with zipfile.ZipFile(folder / "graph.aoti") as made, zipfile.ZipFile(tmp_path / "graph.aoti", "w") as changed:
        for name in made.namelist():
            data = made.read(name)
            changed.writestr(name, change(data) if name.endswith(".so") else data)
    with pytest.raises(CompileError, match=re.escape(said)):
        machine_code.check(tmp_path, capability, "linux", {})


def test_a_workflow_names_the_models(baked: Baked, tmp_path: Path) -> None:
    workflow = tmp_path / "workflow.json"
    workflow.write_text(
        json.dumps({"1": {"class_type": "UNETLoader", "inputs": {"unet_name": "flux-not.safetensors"}}})
    )
    code, rows = baked.bake(workflow, "sm_86")
    assert (code, [row["event"] for row in rows]) == (3, ["failed"])
    assert "names no diffusion model" in rows[0]["text"]


def test_a_plan_needs_no_weights_and_finds_what_the_file_made(baked: Baked, tmp_path: Path) -> None:
    """Of the file its header is fetched. The graphs' keys are the same, so that nothing is compiled."""
    size = baked.file.stat().st_size
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[absent]\narchitectures = ["sm_86", "sm_120"]\n'
        f'[[bake]]\nname = "Wan"\nmodel = "hf://some/where/{baked.file.name}"\ndtype = "F32"\n'
    )
    served = tmp_path / "served" / "some" / "where" / "resolve" / "main"
    served.mkdir(parents=True)
    shutil.copy(baked.file, served)
    with http_server(tmp_path / "served") as server:
        server.fault = ranges
        code, rows = baked.bake(plan, "", "", HF_ENDPOINT=server.url)
        asked = len(server.asked)
    assert (code, [(row["event"], row["target"]) for row in rows]) == (0, [("found", "sm_86"), ("found", "sm_120")])
    (fetched,) = (baked.home / "headers").rglob("*.safetensors")
    assert (asked, fetched.stat().st_size) == (2, size)
    assert fetched.stat().st_blocks * 512 < size / 2
    code, rows = baked.bake(plan, "sm_90", "linux", HF_ENDPOINT="http://127.0.0.1:9")
    assert (code, [row["event"] for row in rows]) == (3, ["failed"])
    shutil.copy(baked.file, tmp_path)  # beside the plan: no network is needed
    code, rows = baked.bake(plan, "sm_86", "", HF_ENDPOINT="http://127.0.0.1:9")
    assert (code, [(row["event"], row["target"]) for row in rows]) == (0, [("found", "sm_86")])


def test_a_target_that_nobody_knows(baked: Baked) -> None:
    code, rows = baked.bake(baked.file, "sm_86,sm_77")
    assert code == 2 and "sm_77 is not known" in rows[0]["text"]
    code, rows = baked.bake(baked.file, "sm_86", "beos")
    assert code == 2 and "beos is not known" in rows[0]["text"]


def test_headers_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(absent_gpu.site, "getsitepackages", list)
    monkeypatch.setattr(absent_gpu.sys, "path", [])
    monkeypatch.setattr(absent_gpu, "_TOOLKIT", tmp_path / "none")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(LoadError, match="pip install nvidia-cuda-crt nvidia-cuda-cccl"):
        absent_gpu.cuda_headers()
    for header in absent_gpu._HEADERS:
        (tmp_path / "include" / header).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "include" / header).touch()
    assert absent_gpu.cuda_headers() == tmp_path
