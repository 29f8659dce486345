"""What a container leaves of the machine: control groups (version 2) limit memory and cores further."""

from __future__ import annotations

import os
from pathlib import Path

GROUP = Path("/sys/fs/cgroup")


def memory_limit(group: Path = GROUP) -> int | None:
    """Return the bytes that may be taken in all; None: no limit, or nobody can tell."""
    try:
        limit = (group / "memory.max").read_text().strip()
        return None if limit == "max" else int(limit)
    except (OSError, ValueError):
        return None


def memory_left(group: Path = GROUP) -> int | None:
    """Return the bytes that may still be taken, file cache included; None: no limit, or nobody can tell."""
    try:
        limit = (group / "memory.max").read_text().strip()
        taken = int((group / "memory.current").read_text())
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = next((int(line[1]) for line in lines if line[:1] == ["inactive_file"] and len(line) == 2), 0)
        return None if limit == "max" else max(int(limit) - taken + cached, 0)
    except (OSError, ValueError):
        return None


def cores(group: Path = GROUP) -> int:
    """Return how many cores this process may use at once, at least one."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        usable = os.cpu_count() or 1
    try:
        quota, period = (group / "cpu.max").read_text().split()
        if quota != "max":
            usable = min(usable, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        pass
    return max(usable, 1)
