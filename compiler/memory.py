"""How much memory is free, and bytes in words."""

from __future__ import annotations

import torch


def available_bytes(device: torch.device) -> int:
    """Memory that can be taken on a device without swapping, in bytes; no limit where nobody can tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        import psutil
    except ImportError:  # ComfyUI brings it; outside of ComfyUI nothing is promised about memory
        return 2**62
    return int(psutil.virtual_memory().available)


def in_words(count: int) -> str:
    """`52 GiB`, `1.5 GiB`, `340 MiB`."""
    gib = count / 2**30
    return f"{gib:.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB" if gib >= 1 else f"{count / 2**20:.0f} MiB"
