"""The one way of a call, of a whole model or of a block: by what is known from the last one, else checked first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ...common import reasons
from ...common.errors import in_brief
from ...common.log import logger
from ...common.refused import Refused
from ..graphs.loaded_graph import Changed

T = TypeVar("T")
log = logger("runtime")


@dataclass(frozen=True)
class Failed(Refused):
    """An attempt raised: no further one is made in this run."""


def serve(attempt: Callable[[bool], T | Changed], known: bool) -> T | Failed:
    """Make a call by a graph, or tell why eager takes over. Never raises for the graph's sake.

    Args:
        attempt: makes the call. It is told whether to check what is called first; else the graph's call does that while
            the device computes, and whoever finds it changed asks for one more attempt.
        known: whether what is called was found right at the last call.

    Returns:
        What the attempt gave, or that it raised. An interrupt is a BaseException and goes through.
    """
    try:
        served = attempt(not known)
        if isinstance(served, Changed):
            served = attempt(True)
        assert not isinstance(served, Changed)  # it was checked
        return served
    except Exception as error:  # never into the queue
        log.exception("a compiled call failed and runs uncompiled")
        return Failed(reasons.CallFailed(type(error).__name__, in_brief(error, 120)))
