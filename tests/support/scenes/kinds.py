"""What can be added to a workflow, by name: each is wired once, for random workflows as for tables of cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from .workflow import Family, Values, Workflow

Traces = Literal["none", "stays"]
Stage = Literal["model", "conditioning", "latent", "sampling", "second pass", "decode"]
Draw = Callable[[Random], dict[str, Any]]
Wire = Callable[[Workflow, Values], None]
Served = Callable[[Values], bool]


@dataclass(frozen=True)
class Kind:
    """A kind of ingredient.

    Attributes:
        draw: its values, at random.
        wire: adds it to a workflow.
        served: whether every call that it causes is known to go through a graph.
        weight: how often it is chosen, relative to others; 0: it is in no random workflow.
        family: the only family of models that it works with; None: all.
        of_transformers: whether it works with diffusion transformers alone.
        traces: `stays`: it changes modules in place, which is another architecture for as long as they are loaded; no
            graph is compiled for that in this case, and everything is unloaded after each run.
    """

    name: str
    stage: Stage
    draw: Draw
    wire: Wire
    served: Served
    weight: float = 1.0
    family: Family | None = None
    traces: Traces = "none"
    of_transformers: bool = False


KINDS: dict[str, Kind] = {}


def never(values: Values) -> bool:
    return False


def always(values: Values) -> bool:
    return True


def _nothing(rng: Random) -> dict[str, Any]:
    return {}


def between(rng: Random, low: float, high: float) -> float:
    return round(rng.uniform(low, high), 2)


def kind(
    stage: Stage, draw: Draw = _nothing, served: Served = never, weight: float = 1.0, **more: Any
) -> Callable[[Wire], Wire]:
    """Register a function that wires a kind of its name. `more`: further attributes of `Kind`."""

    def register(wire: Wire) -> Wire:
        KINDS[wire.__name__] = Kind(wire.__name__, stage, draw, wire, served, weight, **more)
        return wire

    return register


def patch(class_type: str, draw: Draw = _nothing, served: Served = never, weight: float = 1.0, **more: Any) -> None:
    """Register a kind that is one node with one MODEL going through it; its values are the node's inputs."""

    def wire(work: Workflow, values: Values) -> None:
        work.model = work.add(class_type, model=work.model, **values)

    KINDS[class_type] = Kind(class_type, "model", draw, wire, served, weight, **more)
