"""Compiling processes that start with torch imported, for tests of what their graphs compute."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from headless import warm


def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have compiling processes start as copies of the run's process that has imported torch, where there is one."""
    from onegraph.compiler.process import supervisor

    def start(staging: Path, scratch: str) -> Any:
        command = [sys.executable, str(Path(supervisor.__file__).with_name("worker.py")), str(staging)]
        return warm.start(command, environ={**os.environ, "TMPDIR": scratch}, cwd=staging)

    if os.environ.get(warm.VARIABLE):
        monkeypatch.setattr(supervisor, "_start", start)
