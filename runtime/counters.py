"""What this process did so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..common.reasons import Reason


@dataclass
class Counters:
    """Counts since the process started. Tests, the status route and the demo read them.

    Attributes:
        preloads: graphs loaded and warmed up before the first call.
        spot_checks: calls compared with eager after a graph's first use.
        reasons: eager calls by why they were.
    """

    compiles: int = 0
    restores: int = 0
    preloads: int = 0
    binds: int = 0
    compiled_calls: int = 0
    eager_calls: int = 0
    spot_checks: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)

    def count_eager(self, reason: Reason, calls: int = 1) -> None:
        """Count calls that ran without a graph."""
        self.eager_calls += calls
        self.reasons[reason] += calls
