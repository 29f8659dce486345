"""torch's private names: each is asked for by its dotted path, and refused in words where this torch lacks it."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import torch

from ...errors import LoadError

OLDEST_TORCH = (2, 6)


def version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def require(what: str) -> Any:
    """A private name of torch by its dotted path, or a clear refusal when this torch lacks it."""
    if version() < OLDEST_TORCH:
        raise LoadError(f"torch {torch.__version__} is too old for AOTInductor graphs; update to 2.6 or newer.")
    place: Any = torch
    for part in what.split(".")[1:]:
        if not hasattr(place, part):  # a submodule that nobody has imported yet
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{place.__name__}.{part}")
        place = getattr(place, part, None)
        if place is None:
            raise LoadError(
                f"torch {torch.__version__} has no {what}, which AOTInductor graphs need; "
                "use a torch version named in the README or set backend to off."
            )
    return place
