"""Background compiles beside other tests: at idle priority they would wait for minutes while those use all cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import psutil
from headless import warm
from headless.standstill import wait_until


def wait_for(condition: Callable[[], object], process: int | None = None) -> None:
    """Wait for a condition while compiles below a process (this one when left out) run at normal priority.

    They go on as long as they get time of the processor. Copies of the warm process are below that one.
    """

    def signs() -> int:
        below = [*psutil.Process(process).children(recursive=True), *_copies()]
        _prefer(below)
        return round(sum(map(_seconds, below)))

    wait_until(condition, signs)


def _copies() -> list[psutil.Process]:
    """Compiles of any test that are copies: they would wait for whatever runs beside them, also to be ended."""
    address = os.environ.get(warm.VARIABLE)
    return [one for one in psutil.process_iter(["cmdline"]) if address and address in (one.info["cmdline"] or ())]


def _seconds(process: psutil.Process) -> float:
    """What a process has had of the processor; 0 where it has ended."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _prefer(processes: list[psutil.Process]) -> None:
    """Give processes of idle priority, and their sessions, the normal one, as far as the system lets this user."""
    if not hasattr(os, "SCHED_IDLE"):
        return
    for folder in (Path("/proc", str(process.pid)) for process in processes):
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
            for thread in (int(entry.name) for entry in (folder / "task").iterdir()):
                if os.sched_getscheduler(thread) == os.SCHED_IDLE:
                    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                    os.setpriority(os.PRIO_PROCESS, thread, 0)
            session = folder / "autogroup"
            if session.exists() and not session.read_text().rstrip().endswith("nice 0"):
                session.write_text("0")
