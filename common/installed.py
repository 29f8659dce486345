"""Versions of what is installed, without importing it: torch takes seconds, and commands on files need none of it."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from pathlib import Path

_VERSION = re.compile(r"^__version__(?:: \w+)? = ['\"]([^'\"]+)['\"]", re.MULTILINE)


@functools.cache
def torch_version() -> str:
    """Return the version of torch as torch tells it, build included; empty where there is none or nobody can tell."""
    loaded = sys.modules.get("torch")
    if loaded is not None:
        return str(getattr(loaded, "__version__", ""))
    try:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return ""
        match = _VERSION.search((Path(spec.origin).parent / "version.py").read_text(errors="replace"))
    except (OSError, ValueError, ImportError):
        return ""
    return match[1] if match else ""
