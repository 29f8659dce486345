"""The backends there are, by name: those of this package, and what others offer by entry points."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import metadata

from ..common.errors import BackendError, in_brief
from .base import AVAILABLE as AVAILABLE
from .base import OPERATIONS as OPERATIONS
from .base import Availability as Availability
from .base import Backend as Backend
from .base import CompilesForAbsent as CompilesForAbsent
from .base import Rebuilds as Rebuilds
from .base import Runner as Runner
from .base import ServesBlocks as ServesBlocks
from .base import SharesCompiles as SharesCompiles
from .base import rebuilder as rebuilder


def known() -> Sequence[str]:
    """Return the names of this package's backends, in the order `auto` tries them. Others are only used by name."""
    return ("inductor", "oneflow")


def get(name: str) -> Backend:
    """Return the backend of that name.

    Raises:
        KeyError: no backend has that name.
        BackendError: another package offers it, and it cannot be loaded.
    """
    if name == "inductor":
        from .inductor import InductorBackend

        return InductorBackend()
    if name == "oneflow":
        from .oneflow import OneFlowBackend

        return OneFlowBackend()
    return _offered(name)


@functools.cache  # of what was found: a package may be installed later
def _offered(name: str) -> Backend:
    for entry_point in metadata.entry_points(group="onegraph.backends", name=name):
        try:
            backend: Backend = entry_point.load()()
        except Exception as error:
            raise BackendError(
                f"The backend {name!r} cannot be loaded ({type(error).__name__}: {in_brief(error)}). "
                "Update the package that offers it, or choose another backend."
            ) from error
        return backend
    raise KeyError(name)
