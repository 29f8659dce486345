"""`onegraph doctor` on machines that lack something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.processes.without import python_without
from support.store.command import onegraph as in_process

from onegraph.common.installed import torch_version
from onegraph.common.reasons import NoPublisherKey
from onegraph.graph_cache.store import Store


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One without torch."""
    return python_without(tmp_path_factory.mktemp("environment") / "of a user", "torch")


def onegraph(python: Path | str, home: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-c", "from onegraph.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, "ONEGRAPH_HOME": str(home), "COLUMNS": "240", **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_doctor_tells_that_torch_is_missing(python: Path, tmp_path: Path) -> None:
    done = onegraph(python, tmp_path, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines[:2]] == ["OneGraph", "Python"]
    first, remedy, *rest = [line for line in lines[2:] if not line.startswith("ComfyUI ")]
    assert first == f"torch cannot be imported by {python} (No module named 'torch')"
    assert remedy.startswith("  problem: run the `onegraph` of the Python that ComfyUI runs in")
    assert {"0 graphs, 0.0 MiB of 10 GiB", f"Graph folder: {tmp_path}"} <= {*rest}
    assert rest[-1].startswith("Models can be neither compiled nor loaded here: run the `onegraph` of the Python")
    found = json.loads(onegraph(python, tmp_path, "doctor", "--json").stdout)["findings"]
    assert {one["what"]: one["state"] for one in found if one["state"] == "problem"} == {"torch": "problem"}
    assert {"torch", "signing key", "budget"} <= {one["what"] for one in found}
    assert "graph folder" not in {one["what"] for one in found}


def test_doctor_tells_where_graphs_are_loaded_from_where_others_may_write(python: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    found = json.loads(onegraph(python, home, "doctor", "--json").stdout)["findings"]
    (note,) = [one for one in found if one["what"] == "graph folder"]
    assert note["state"] == "note" and note["text"].startswith("others may write the graph folder")


def test_commands_that_need_torch_say_so(python: Path, tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    checkpoint = tmp_path / "photo.safetensors"
    checkpoint.write_bytes(b"weights")
    for command in ("explain", "bench"):
        done = onegraph(python, tmp_path, command, checkpoint, "--comfyui", tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"Error: This command needs torch, which {python} cannot import (")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise ImportError('libcudart.so: cannot open shared object file')",
         "libcudart.so: cannot open shared object file"),
        ("raise OSError('[WinError 126] c10.dll')", "[WinError 126] c10.dll"),
        ("import a_package_that_it_needs", "No module named 'a_package_that_it_needs'"),
        ("", "module 'torch' has no attribute 'cuda'"),
    ],
)  # fmt: skip
def test_a_broken_torch_ends_a_command_in_one_line(text: str, why: str, tmp_path: Path) -> None:
    """In this process, and in that of ComfyUI, whose `main.py` imports it."""
    (tmp_path / "torch.py").write_text(text)
    (tmp_path / "main.py").write_text("import torch\ntorch.cuda")
    for name in ("photo.safetensors", "workflow.json"):
        (tmp_path / name).write_text("{}")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    commands = [("explain", "photo.safetensors"), ("bench", "photo.safetensors")]
    for command, name in [*commands, ("bake", "workflow.json"), ("explain", "workflow.json")][: 4 if text else 2]:
        done = onegraph(sys.executable, tmp_path, command, tmp_path / name, "--comfyui", tmp_path, PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"Error: This command needs torch, which {sys.executable} cannot import ({why}). "
            "Run `onegraph doctor`, or the `onegraph` of the Python that ComfyUI runs in.\n"
        )


def test_commands_on_files_need_no_torch(python: Path, tmp_path: Path) -> None:
    for command in ("ls", "stats", "verify", "prune", "retry"):
        assert onegraph(python, tmp_path, command).returncode == 0


@pytest.mark.parametrize(
    "text", ["raise OSError('libcudart.so is missing')", "raise RuntimeError('built wrongly')", ""]
)
def test_doctor_tells_that_torch_is_broken(
    text: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what an uninstall left behind is, which can be imported, and has nothing in it."""
    torch_version()  # remembered, before torch is taken away
    (tmp_path / "torch.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    done = in_process(store, "doctor")
    assert done.exit_code == 1 and f"torch cannot be imported by {sys.executable} (" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Models can be neither compiled nor loaded here: ")


@pytest.mark.parametrize(
    ("runs", "compiles", "told"),
    [
        (True, True, "Models can be compiled and graphs loaded here, for cpu."),
        (True, False, "No model can be compiled here. For cpu, graphs can be loaded only: install what is named above, "
         "or `onegraph import` some."),
        (False, False, "No model can be compiled here. Nor can graphs be loaded: install what is named above."),
    ],
)  # fmt: skip
def test_doctors_last_line(
    runs: bool, compiles: bool, told: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from onegraph import backends
    from onegraph.backends.base import AVAILABLE, Availability

    answers = {True: AVAILABLE, False: Availability(NoPublisherKey())}  # any reason
    backend = SimpleNamespace(can_run=lambda device: answers[runs], can_compile=lambda device: answers[compiles])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(backends, "get", lambda name: backend)
    assert in_process(store, "doctor").stdout.splitlines()[-1] == told
