"""How much memory is free, whether an error says that it ran out, and bytes as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from . import container
from .errors import Cause, CompileError, chain

if TYPE_CHECKING:  # reasons need bytes as text, and a compiling process reads its job, before torch can be imported
    import torch

_MEMINFO = Path("/proc/meminfo")
_CLEARLY = 0.25  # more than was free when something failed
_USABLE = 0.95  # of a device or a disk


def available_bytes(device: torch.device) -> int:
    """Memory that can be taken on a device (system memory: without swapping), in bytes.

    Where nobody can tell, which is a system that is neither Linux nor has psutil, there is no limit.
    """
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    left = container.memory_left()
    return _system_bytes() if left is None else min(left, _system_bytes())


def total_bytes(device: torch.device) -> int:
    """Memory that a device has (system memory: that this container may take), in bytes; no limit as above."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[1])
    limit = container.memory_limit()
    return _system_bytes("MemTotal", "total") if limit is None else min(limit, _system_bytes("MemTotal", "total"))


def _system_bytes(line: str = "MemAvailable", attribute: str = "available") -> int:
    """Of the whole machine: a line of /proc/meminfo, or what psutil calls it."""
    if _MEMINFO.is_file():
        for entry in _MEMINFO.read_text().splitlines():
            if entry.startswith(f"{line}:"):
                return 1024 * int(entry.split()[1])
    try:
        import psutil
    except ImportError:
        return 2**62
    return int(getattr(psutil.virtual_memory(), attribute))


def clearly_more(free: int, total: int, least: int) -> int | None:
    """Return the bytes that must be free before what failed with `free` bytes is tried again; None: there never are.

    Args:
        total: bytes that exist, of which other programs and the system always take some.
        least: how many more make a difference.

    >>> clearly_more(free=40, total=100, least=5)
    50
    >>> clearly_more(free=94, total=100, least=5) is None
    True
    """
    most = int(_USABLE * total)
    return min(free + max(int(_CLEARLY * free), least), most) if most >= free + least // 2 else None


def unused_bytes(device: torch.device) -> int:
    """As `available_bytes`, with what torch's allocator keeps for later."""
    available = available_bytes(device)
    if device.type == "cuda":
        import torch

        available += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return available


def give_back(device: torch.device) -> None:
    """Return what torch's allocator keeps for later to the device, where other processes can take it."""
    if device.type == "cuda":
        import torch

        with torch.cuda.device(device):
            torch.cuda.empty_cache()


# How the driver, the C library, torch's CPU allocator, C++ and a compiler's front end say it in texts of other errors.
_DEVICE_TEXTS = ("cuda out of memory", "cuda error: out of memory", "cuda_error_out_of_memory", "hip out of memory")
_SYSTEM_TEXTS = (
    "cannot allocate memory", "can't allocate memory", "not enough memory", "bad_alloc",
    "killed signal terminated program", "virtual memory exhausted",
)  # fmt: skip


def ran_out(error: BaseException) -> Cause:
    """Tell which memory ran out according to an error or those that it came from, if any did."""
    import torch

    for one in chain(error):
        text = str(one).lower()
        if isinstance(one, CompileError) and one.cause:
            return one.cause
        if isinstance(one, torch.OutOfMemoryError) or any(words in text for words in _DEVICE_TEXTS):
            return "device memory"
        if isinstance(one, MemoryError) or any(words in text for words in _SYSTEM_TEXTS):
            return "memory"
    return ""


def in_words(count: int) -> str:
    """Write bytes for people.

    >>> in_words(52 << 30), in_words(3 << 29), in_words(340 << 20)
    ('52 GiB', '1.5 GiB', '340 MiB')
    """
    gib = count / 2**30
    return f"{gib:.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB" if gib >= 1 else f"{count / 2**20:.0f} MiB"
