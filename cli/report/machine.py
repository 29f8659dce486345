"""The machine and the versions that figures are about."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path


def processor() -> str:
    """Return the CPU's name, as its maker writes it where the system tells."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def facts() -> tuple[tuple[str, str], ...]:
    """Names and values for the end of a page; imports torch."""
    import torch

    from ...common.version import __version__

    gpu = [("GPU", torch.cuda.get_device_name())] if torch.cuda.is_available() else []
    return (
        ("CPU", f"{processor()}, {os.cpu_count()} cores"),
        *gpu,
        ("System", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("Python", platform.python_version()),
        ("torch", torch.__version__),
        ("OneGraph", __version__),
    )
