"""The backends there are, by name. A third one is one file, or package, and one line here."""

from __future__ import annotations

from collections.abc import Sequence

from .base import AVAILABLE as AVAILABLE
from .base import OPERATIONS as OPERATIONS
from .base import Availability as Availability
from .base import Backend as Backend
from .base import Rebuilds as Rebuilds
from .base import Runner as Runner
from .base import ServesBlocks as ServesBlocks
from .base import SharesCompiles as SharesCompiles
from .base import rebuilder as rebuilder


def known() -> Sequence[str]:
    """Return the names of all backends, in the order `auto` tries them."""
    return ("inductor", "oneflow")


def get(name: str) -> Backend:
    """Return the backend of that name.

    Raises:
        KeyError: no backend has that name.
    """
    if name == "inductor":
        from .inductor import InductorBackend

        return InductorBackend()
    if name == "oneflow":
        from .oneflow import OneFlowBackend

        return OneFlowBackend()
    raise KeyError(name)
