"""ComfyUI-OneGraph: compiled UNets that start at once and never change the image.

This file is both the entry point of the custom node pack and the root of the import package
`onegraph`. It imports nothing heavy, so that ComfyUI's start and the command line stay fast.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .common.version import __version__

if TYPE_CHECKING:
    from comfy_api.latest import ComfyExtension

# Of requirements.txt: what the nodes import. A clone that nobody ran pip for lacks them.
_MISSING = [name for name in ("blake3", "platformdirs", "pydantic") if find_spec(name) is None]

WEB_DIRECTORY = None if _MISSING else "web"  # a page without its routes would show nothing but errors

__all__ = ["WEB_DIRECTORY", "__version__", "comfy_entrypoint"]


async def comfy_entrypoint() -> ComfyExtension:
    """What ComfyUI calls to learn the pack's nodes (V3 node API).

    Raises:
        ImportError: packages are missing. ComfyUI logs the text, lists the pack as failed, and starts without it.
    """
    if _MISSING:
        raise ImportError(
            f"OneGraph's nodes are not loaded: this Python lacks {', '.join(_MISSING)}. "
            f"Restart ComfyUI after this command: {_install()}"
        )
    from .nodes import OneGraphExtension

    return OneGraphExtension()


def _install() -> str:
    """The command that installs what the pack needs into this very Python, as its terminal takes it."""
    alone = ["-s"] if sys.flags.no_user_site else []  # as ComfyUI's portable builds start it
    requirements = Path(__file__).with_name("requirements.txt")
    join = subprocess.list2cmdline if os.name == "nt" else shlex.join
    return join([sys.executable, *alone, "-m", "pip", "install", "-r", str(requirements)])
