"""What this process did so far."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from ..common.reasons import Reason

RESTORE_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds, upper ends of a histogram's parts
MOST_REMEMBERED = 1000  # graphs of which the last restore is


class RestoreTimes:
    """How long restores took: find, check and load.

    Attributes:
        counts: of restores by the parts of the histogram, the last one for those above all bounds.
        seconds: all together.
        last: of each graph, by its folder.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(RESTORE_BOUNDS) + 1)
        self.seconds = 0.0
        self.last: dict[str, float] = {}

    def add(self, folder: str, seconds: float) -> None:
        """Count a restore."""
        self.counts[bisect_left(RESTORE_BOUNDS, seconds)] += 1
        self.seconds += seconds
        self.last.pop(folder, None)
        self.last[folder] = round(seconds, 3)
        if len(self.last) > MOST_REMEMBERED:
            del self.last[next(iter(self.last))]


@dataclass
class Counters:
    """Counts since the process started. Tests, the status route and the demo read them.

    Attributes:
        fetches: graphs that came from remote stores; `restores` counts them, too.
        preloads: graphs loaded and warmed up before the first call.
        dropped_calls: launched calls whose output was dropped, because a check after the launch found a change.
        spot_checks: calls compared with eager after a graph's first use.
        reasons: eager calls by why they were.
        misses: graphs that were asked for and not there, by the code of the reason.
    """

    compiles: int = 0
    restores: int = 0
    fetches: int = 0
    preloads: int = 0
    binds: int = 0
    compiled_calls: int = 0
    eager_calls: int = 0
    dropped_calls: int = 0
    spot_checks: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    restore_times: RestoreTimes = field(default_factory=RestoreTimes)

    def count_eager(self, reason: Reason, calls: int = 1) -> None:
        """Count calls that ran without a graph."""
        self.eager_calls += calls
        self.reasons[reason] += calls
