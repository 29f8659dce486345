"""Estimate how far a compile is and how long it still takes, from earlier compiles on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

STAGES = ("starting", "capturing", "compiling", "checking")
_SCALING = ("capturing", "compiling")  # with the size of the model
# Seconds without any earlier compile here: a small UNet on two cores, for each of its weights where that scales.
_TYPICAL = {"starting": 3.0, "capturing": 0.02, "compiling": 0.12, "checking": 1.0}
_LEAST_SECONDS = 0.2
_LATE = 2.0  # times what a stage was expected to take
_CERTAIN = 0.9  # of a stage: one that takes longer than expected approaches the last tenth and never reaches it


def expected(rates: Mapping[str, float], weights: int) -> dict[str, float]:
    """Return the seconds that each stage of a compile will probably take.

    Args:
        rates: from `per_weight`, of an earlier compile of the same kind; empty if there was none.
        weights: how many the model has.
    """
    scale = {stage: max(weights, 1) if stage in _SCALING else 1 for stage in STAGES}
    return {s: max(rates.get(s, _TYPICAL[s]) * scale[s], _LEAST_SECONDS) for s in STAGES}


def per_weight(stages: Mapping[str, float], weights: int) -> dict[str, float]:
    """Return the seconds that a compile's stages took, per weight of the model where they scale with it."""
    return {s: t / max(weights, 1) if s in _SCALING else t for s, t in stages.items() if s in STAGES}


@dataclass(frozen=True)
class Progress:
    """How far a compile is.

    Attributes:
        seconds: since it began.
        share: of the whole, 0 to 1; never falls.
        remaining: seconds that it probably still takes; of one compile it never grows.
        late: whether its stage takes far longer than expected, so that `remaining` tells nothing.
    """

    stage: str
    seconds: float
    share: float = 0.0
    remaining: float = 0.0
    late: bool = False

    @property
    def left(self) -> str:
        """How long it still takes, in words."""
        if self.late:
            return "longer than expected"
        return f"about {self.remaining:.0f} s left" if self.remaining >= 1 else "almost done"


class Estimate:
    """Follow one compile through its stages.

    Args:
        expected: seconds for each stage.

    Attributes:
        stages: seconds of those that are over.
    """

    def __init__(self, expected: Mapping[str, float]) -> None:
        self.stages: dict[str, float] = {}
        self._expected = dict(expected)
        self._total = sum(expected.values())
        self._stage, self._began = STAGES[0], 0.0
        self._share, self._remaining = 0.0, self._total

    def at(self, stage: str, seconds: float, regions_done: float = 0.0) -> Progress:
        """Return the progress at a time.

        Args:
            seconds: since the compile began.
            regions_done: share of the graph whose regions are compiled, in the stage that compiles.
        """
        if stage != self._stage:
            self.stages[self._stage] = seconds - self._began
            self._stage, self._began = stage, seconds
        done = sum(self._expected[s] for s in STAGES[: STAGES.index(stage)])
        taken = (seconds - self._began) / self._expected[stage]
        within = max(_approach(taken), regions_done)
        self._share = max(self._share, min((done + within * self._expected[stage]) / self._total, 1.0))
        pace = max(1.0, seconds / (self._share * self._total)) if self._share > 0.2 else 1.0
        self._remaining = min(self._remaining, (1 - self._share) * self._total * pace)
        return Progress(stage, seconds, self._share, self._remaining, taken > _LATE)

    def finish(self, seconds: float) -> None:
        """Count the last stage in `stages`: the compile is over."""
        self.stages[self._stage] = seconds - self._began


def _approach(share: float) -> float:
    """Turn a share of the expected time into a share of the work: the same at first, never all of it."""
    return share if share < _CERTAIN else 1 - (1 - _CERTAIN) * math.exp((_CERTAIN - share) / (1 - _CERTAIN) / 3)
