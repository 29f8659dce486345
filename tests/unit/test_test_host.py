"""What `make test-host` installs for another ComfyUI."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def tool() -> Any:
    return importlib.import_module("test_host")


def test_only_packages_of_the_hosts_own_are_read(tool: Any) -> None:
    text = "comfyui-frontend-package==1.0\ntorch\ncomfy-kitchen==0.2.31\n  comfy-aimdo==0.4.13 # pages\n#comfy-x==1\n"
    assert tool.pins(text) == {"comfy-kitchen": "0.2.31", "comfy-aimdo": "0.4.13"}


def test_only_other_versions_are_installed(tool: Any) -> None:
    present = importlib.metadata.version("pytest")
    assert tool.differing({"pytest": present}) == []
    assert tool.differing({"pytest": "0.1", "onegraph-no-such-package": "2"}) == [
        "onegraph-no-such-package==2",
        "pytest==0.1",
    ]


def test_a_missing_comfyui_is_named(tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    assert tool.main([]) == 2
    assert "COMFYUI_PATH must name the folder" in capsys.readouterr().out


def test_the_environment_is_made_once(tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It sees its own packages first and those of this environment."""
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    wheel = tmp_path / "onegraph_tiny-1-py3-none-any.whl"
    info = "onegraph_tiny-1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onegraph_tiny.py", "there = True\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: onegraph-tiny\nVersion: 1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    python = tool.environment_with([str(wheel)])
    script = "import onegraph_tiny, pytest; print(onegraph_tiny.there)"
    assert subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout == "True\n"
    monkeypatch.setattr(tool.venv, "create", None)
    assert tool.environment_with([str(wheel)]) == python
    assert str(python) != sys.executable
