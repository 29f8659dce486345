"""What commands need of ComfyUI or of a model: a module of `host` in a process of its own, which prints JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


class ChildFailedError(Exception):
    """The process did not end well; the text is the last line that it wrote."""


def result(module: str, *arguments: str, environ: Mapping[str, str] | None = None) -> Any:
    """Run a module of the pack and return the JSON that its last line is.

    Args:
        module: below the pack, such as `host.jobs.bench`.
        environ: variables besides this process's own.

    Raises:
        ChildFailedError: it did not end well.
    """
    command = [sys.executable, "-m", f"onegraph.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environ or {})}, check=False)
    if done.returncode != 0:
        raise ChildFailedError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])
