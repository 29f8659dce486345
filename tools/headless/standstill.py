"""How long to wait for something: for as long as it goes on. A busy machine is slow, and that is no failure."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

PATIENCE = 900.0  # seconds without any sign; what takes a minute alone takes that long beside fifteen others
LIMIT = 1800.0  # seconds in which a test shows no sign; pyproject.toml tells pytest-timeout the same


def moved() -> None:
    """Tell that something goes on: pytest-timeout's limit of the test that is under way, if any, begins anew."""
    if hasattr(signal, "setitimer") and signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, LIMIT)


def wait_until(holds: Callable[[], object], signs: Callable[[], object] = lambda: None, pause: float = 0.05) -> None:
    """Wait for a condition.

    Args:
        signs: gives something else whenever there is progress, such as the size of a log.
        pause: seconds between two looks.

    Raises:
        TimeoutError: it stood still for `PATIENCE` seconds.
    """
    last, since = signs(), time.monotonic()
    while not holds():
        now = signs()
        if now != last:
            last, since = now, time.monotonic()
            moved()
        if time.monotonic() - since > PATIENCE:
            raise TimeoutError(f"nothing moved for {PATIENCE:.0f} s; the last sign: {last}")
        time.sleep(pause)
