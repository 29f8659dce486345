"""Run a script of tests/support/windows by Windows' Python, and read what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windows_env import ROOT, windows_path, windows_python

SCRIPTS = Path(__file__).parent


def facts(script: str, *paths: Path) -> dict[str, Any]:
    """Run a script on some files; what it prints is one JSON document."""
    words = [windows_path(SCRIPTS / script), *map(windows_path, paths)]
    folders = ";".join(windows_path(ROOT / name) for name in ("tests", "tools"))
    done = windows_python(*words, PYTHONPATH=folders)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found
