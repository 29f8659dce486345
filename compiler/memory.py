"""How much memory is free, and bytes in words."""

from __future__ import annotations

from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")


def available_bytes(device: torch.device) -> int:
    """Memory that can be taken on a device (system memory: without swapping), in bytes.

    Where nobody can tell, which is a system that is neither Linux nor has psutil, there is no limit.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if _MEMINFO.is_file():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    try:
        import psutil
    except ImportError:
        return 2**62
    return int(psutil.virtual_memory().available)


def unused_bytes(device: torch.device) -> int:
    """As `available_bytes`, with what torch's allocator keeps for later."""
    available = available_bytes(device)
    if device.type == "cuda":
        available += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return available


def in_words(count: int) -> str:
    """`52 GiB`, `1.5 GiB`, `340 MiB`."""
    gib = count / 2**30
    return f"{gib:.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB" if gib >= 1 else f"{count / 2**20:.0f} MiB"
