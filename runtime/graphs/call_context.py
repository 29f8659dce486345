"""What a graph's caller knows of a call besides its inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from .binding import Held
from .step_replay import StepReplay


class CallContext(NamedTuple):
    """What a graph's caller knows of a call.

    Attributes:
        held: keeps what the graph reads; None: until the call returns.
        unchanged: whether all that the caller has checked is as it was; the weights are checked by the graph. Asked
            after the launch, while the device computes, where the policy says so and nothing but the device sees the
            call; else before. None: the caller has just checked.
        compared: for a graph that calls functions of others: in what it is run for comparisons, and eager as well. Its
            result is then of another run.
        copied: whether the inputs hold copies, which eager's own call would not.
        step: of whose calls it is one; None: of none, or its weights are there for this call alone.
    """

    held: Held | None = None
    unchanged: Callable[[], bool] | None = None
    compared: Callable[[], contextlib.AbstractContextManager[object]] | None = None
    copied: bool = False
    step: StepReplay | None = None


PLAIN = CallContext()
