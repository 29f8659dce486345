"""ComfyUI's server, where there is one."""

from __future__ import annotations

import sys
from typing import Any


def prompt_server() -> Any:
    """Return ComfyUI's server; None without one (in-process use)."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
