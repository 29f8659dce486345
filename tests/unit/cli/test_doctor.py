"""`onegraph doctor` on machines that lack something."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.processes.without import python_without


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One without torch."""
    return python_without(tmp_path_factory.mktemp("environment") / "of a user", "torch")


def onegraph(python: Path, home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-c", "from onegraph.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, "ONEGRAPH_HOME": str(home), "COLUMNS": "240"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_doctor_tells_that_torch_is_missing(python: Path, tmp_path: Path) -> None:
    done = onegraph(python, tmp_path, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines[:2]] == ["OneGraph", "Python"]
    first, remedy, *rest = [line for line in lines[2:] if not line.startswith("ComfyUI ")]
    assert first == f"torch cannot be imported by {python} (No module named 'torch')"
    assert remedy.startswith("  problem: run the `onegraph` of the Python that ComfyUI runs in")
    assert {"0 graphs, 0.0 MB of 10,737 MB", f"Graph folder: {tmp_path}"} <= {*rest}
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


def test_commands_on_files_need_no_torch(python: Path, tmp_path: Path) -> None:
    for command in ("ls", "stats", "verify", "prune", "retry"):
        assert onegraph(python, tmp_path, command).returncode == 0
