"""What a case of the matrix is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ..scenes.judge import Promise
from ..scenes.kinds import KINDS
from ..scenes.workflow import Case as Flow
from ..scenes.workflow import Ingredient, Settings

Run = Flow | Literal["free"]
FREE: Literal["free"] = "free"  # everything is unloaded, as by POST /free
INDUCTOR, BOTH = ("inductor",), ("inductor", "oneflow")
STEPS = 3


@dataclass(frozen=True)
class Case:
    """Workflows in a row, mostly one, and what is promised of them together.

    Attributes:
        group: heading in the table.
        runs: what is queued, in order.
        promised: which calls run compiled: `all`, `some` or `none`.
        codes: of the reasons for eager calls, all of them.
        backends: each gives a row of its own.
        changes: whether what the case adds changes the image, or each run that of the one before.
        full: whether it takes too long for `make test`.
        reports: failures of other packs' users that it repeats, by tracker.
    """

    name: str
    group: str
    runs: tuple[Run, ...]
    promised: Promise = "all"
    codes: tuple[str, ...] = ()
    backends: tuple[str, ...] = INDUCTOR
    changes: bool = True
    full: bool = False
    reports: tuple[str, ...] = ()

    @property
    def flows(self) -> list[Flow]:
        """The workflows among the runs."""
        return [run for run in self.runs if run != FREE]


def flow(*added: Ingredient, node: int = 0, **settings: Any) -> Flow:
    """A workflow: the plainest one with something added.

    Args:
        node: how many of the nodes that take a MODEL come before Compile Model.
        settings: of the workflow, where they are not the usual ones.
    """
    return Flow("", Settings(**{"steps": STEPS, "model_node": node, **settings}), added)


def without(added: Flow) -> Flow:
    """The workflow without what a case adds: its ingredients; or, where it has none, its settings."""
    s = added.settings
    usual = Settings(family=s.family, width=s.width, height=s.height, batch=s.batch, steps=s.steps, noise=s.noise)
    return replace(added, settings=s if added.ingredients else usual, ingredients=())


def part(name: str, **values: Any) -> Ingredient:
    """Something to add, by its name."""
    assert name in KINDS, name
    return Ingredient(name, values)


def one(
    group: str, name: str, *added: Ingredient, node: int = 0, settings: dict[str, Any] | None = None, **rest: Any
) -> Case:
    """A case of one workflow."""
    return Case(name, group, (flow(*added, node=node, **(settings or {})),), **rest)
