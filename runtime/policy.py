"""When a graph is worth using, how often it is checked, and when it is preloaded: values that a registry is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Policy:
    """What a registry goes by.

    Attributes:
        slower: below this share of eager's speed a graph is not worth using; 5 % is measurement noise.
        fastest: a higher speed than so many times eager's is measured again.
        slow_processes: how many processes must find a graph slower than eager before it is believed.
        measuring_seconds: by device type. Beyond that a first use is not measured again: calls that long are hardly
            noisy. On a GPU only the first calls take long, which load kernels and plans.
        checks_share: of the time spent in sampling that comparing later calls with eager may take.
        preload_on: device types where a first call costs so much that it is worth to begin before it.
        one_thread_on: device types where whole graphs are called in one thread (`call_thread`).
        checks_behind_on: device types where a call is checked after its launch, while the device computes. Elsewhere
            a call computes before it returns, so it is checked first.
        captures: whether calls on a GPU may be captured as CUDA graphs.
        preload_room: bytes of memory besides the model's own: preloading a graph never competes for it.
    """

    slower: float = 0.95
    fastest: float = 8.0
    slow_processes: int = 3
    measuring_seconds: Mapping[str, float] = field(default_factory=lambda: {"cpu": 2.0, "cuda": 20.0})
    checks_share: float = 0.004
    preload_on: tuple[str, ...] = ("cuda",)
    one_thread_on: tuple[str, ...] = ("cuda",)
    checks_behind_on: tuple[str, ...] = ("cuda",)
    captures: bool = True
    preload_room: int = 6 << 30


ANY_SPEED = Policy(slower=0.0)  # for measuring: a slow graph is used like any other
