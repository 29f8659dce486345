"""What `dynamic_resolution` means: may a VAE be compiled for this size, and for which range?

Each new resolution of a VAE is a possible compile of ten seconds or more, and workflows change resolution all the
time. The rule decides from the sizes that came up so far in this process.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from ....common import reasons
from ....common.reasons import Reason

DynamicResolution = Literal["auto", "skip", "any size", "each size"]
Size = tuple[int, int]
FEW_SIZES = 4  # up to here `auto` compiles exact sizes that come up again


@dataclass(frozen=True)
class ResolutionDecision:
    """Which graph may serve a call: one for any size, one for exactly this size, or none, and why."""

    shapes: Literal["any size", "exact", "none"]
    why: Reason


@dataclass
class Sizes:
    """The sizes (height, width) one component of one model was asked for in this process."""

    seen: Counter[Size] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, size: Size) -> None:
        """A call of this size came."""
        with self._lock:
            self.seen[size] += 1

    def decide(self, rule: DynamicResolution, size: Size, any_size: bool) -> ResolutionDecision:
        """Decide for a counted size. `any_size`: whether the backend can compile ranges at all."""
        times, different = self.seen[size], len(self.seen)
        if rule == "each size":
            return ResolutionDecision("exact", reasons.EachSizeOwnGraph())
        if rule == "any size" and any_size:
            return ResolutionDecision("any size", reasons.OneGraphForAnySize(auto=False))
        if rule == "any size":
            return ResolutionDecision("exact", reasons.EachSizeOwnGraph("this backend"))
        if rule == "auto" and any_size:
            return ResolutionDecision("any size", reasons.OneGraphForAnySize(auto=True))
        most = FEW_SIZES if rule == "auto" else 1
        if different > most:
            return ResolutionDecision("none", reasons.ResolutionVaries(rule, different))
        if times < 2:
            return ResolutionDecision("none", reasons.SizeCameOnce(rule))
        return ResolutionDecision("exact", reasons.SizeCameAgain(rule))


_sizes: dict[tuple[str, str], Sizes] = {}
_sizes_lock = threading.Lock()


def sizes_of(model: str, component: str) -> Sizes:
    """The sizes seen for a component of the model with this digest."""
    with _sizes_lock:
        return _sizes.setdefault((model, component), Sizes())
