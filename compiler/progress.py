"""How far a compile is and how long it still takes, by what earlier compiles took on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

STAGES = ("starting", "capturing", "compiling", "checking")
_SCALING = ("capturing", "compiling")  # with the size of the model
# Seconds without any earlier compile here: a small UNet on two cores, for each of its weights where that scales.
_TYPICAL = {"starting": 3.0, "capturing": 0.02, "compiling": 0.12, "checking": 1.0}
_LEAST_SECONDS = 0.2
_SURE = 0.9  # of a stage: the last tenth is approached, not reached, by a stage that takes longer than expected


def expected(known: Mapping[str, float], weights: int) -> dict[str, float]:
    """Seconds for each stage of a compile of a model with so many weights.

    Args:
        known: what `per_weight` made of an earlier compile of the kind, as far as there was one.
    """
    scale = {stage: max(weights, 1) if stage in _SCALING else 1 for stage in STAGES}
    return {s: max(known.get(s, _TYPICAL[s]) * scale[s], _LEAST_SECONDS) for s in STAGES}


def per_weight(stages: Mapping[str, float], weights: int) -> dict[str, float]:
    """What a compile's stages took, for each weight of the model where that scales with them."""
    return {s: t / max(weights, 1) if s in _SCALING else t for s, t in stages.items() if s in STAGES}


@dataclass(frozen=True)
class Progress:
    """How far a compile is.

    Attributes:
        seconds: since it began.
        share: of the whole, 0 to 1; never falls.
        remaining: seconds that it probably still takes; never grows.
    """

    stage: str
    seconds: float
    share: float = 0.0
    remaining: float = 0.0


class Estimate:
    """One compile's progress: the stages it has gone through, and how much of the present one is done."""

    def __init__(self, expected: Mapping[str, float]) -> None:
        self.stages: dict[str, float] = {}  # seconds of those that are over
        self._expected = dict(expected)
        self._total = sum(expected.values())
        self._stage, self._began = STAGES[0], 0.0
        self._share, self._remaining = 0.0, self._total

    def at(self, stage: str, seconds: float, parts_done: float = 0.0) -> Progress:
        """What to tell the user.

        Args:
            seconds: since the compile began.
            parts_done: share of the graph whose parts are compiled, in the stage that compiles.
        """
        if stage != self._stage:
            self.stages[self._stage] = seconds - self._began
            self._stage, self._began = stage, seconds
        done = sum(self._expected[s] for s in STAGES[: STAGES.index(stage)])
        within = max(_approach((seconds - self._began) / self._expected[stage]), parts_done)
        self._share = max(self._share, min((done + within * self._expected[stage]) / self._total, 1.0))
        pace = max(1.0, seconds / (self._share * self._total)) if self._share > 0.2 else 1.0
        self._remaining = min(self._remaining, (1 - self._share) * self._total * pace)
        return Progress(stage, seconds, self._share, self._remaining)

    def finish(self, seconds: float) -> None:
        """The compile is over: its last stage counts in `stages`."""
        self.stages[self._stage] = seconds - self._began


def _approach(part: float) -> float:
    """A share of the expected time as a share of the work: the same at first, never all of it."""
    return part if part < _SURE else 1 - (1 - _SURE) * math.exp((_SURE - part) / (1 - _SURE) / 3)
