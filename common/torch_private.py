"""torch's private names: each is asked for by its dotted path, and refused in words where this torch lacks it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch

from .errors import LoadError

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


@contextlib.contextmanager
def without_stack_traces() -> Iterator[None]:
    """While this lasts, tracing does not note for each operation where in Python it came from.

    Only error messages of the compiler's developers speak of that, and it is a tenth of the time that tracing takes.
    Where this torch does it elsewhere, it is noted as ever.
    """
    config: Any = importlib.import_module("torch.fx.config")
    if hasattr(config, "do_not_emit_stack_traces"):
        usual, config.do_not_emit_stack_traces = config.do_not_emit_stack_traces, True
        try:
            yield
        finally:
            config.do_not_emit_stack_traces = usual
        return
    tracer: Any = importlib.import_module("torch.fx.proxy").TracerBase
    if not isinstance(vars(tracer).get("record_stack_traces"), bool):
        yield
        return
    before = tracer.record_stack_traces  # the class's; each tracer sets its own
    tracer.record_stack_traces = property(lambda self: False, lambda self, value: None)
    try:
        yield
    finally:
        tracer.record_stack_traces = before
