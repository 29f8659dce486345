"""What stands in place of what was asked for, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from .reasons import Reason


@dataclass(frozen=True)
class Refused:
    """The graph cannot serve the call, or there is none. `passing`: the very next call may be served."""

    reason: Reason
    passing: bool = False

    @property
    def text(self) -> str:
        """The reason as users read it."""
        return self.reason.text
