"""A clone whose packages nobody installed: what ComfyUI's log says, and that ComfyUI starts all the same."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from headless import host, server
from support.processes.without import python_without


def test_packages_that_are_missing_are_told_with_the_command_that_installs_them(tmp_path: Path) -> None:
    python = python_without(tmp_path / "environment of a user", "blake3", "platformdirs")
    base = server.prepare_base(tmp_path / "base", server.PACK)
    options = ["--cpu", "--quick-test-for-ci", "--disable-api-nodes", "--database-url", "sqlite:///:memory:"]
    command = [python, host.comfyui_path() / "main.py", *options, "--base-directory", base]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    log = done.stdout + done.stderr
    (told,) = re.findall(r"OneGraph's nodes are not loaded: .*", log)
    pack = base / "custom_nodes" / "ComfyUI-OneGraph"
    assert told == (
        f"OneGraph's nodes are not loaded: this Python lacks blake3, platformdirs. "
        f"Restart ComfyUI after this command: '{python}' -m pip install -r {pack / 'requirements.txt'}"
    )
    assert re.search(rf"\(IMPORT FAILED\): {re.escape(str(pack))}$", log, re.MULTILINE)
    assert "Traceback" not in log
