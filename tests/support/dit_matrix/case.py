"""What a case of the table of families is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..scenes.judge import Promise
from ..scenes.sampling import Addition

Run = tuple[Addition, ...]


@dataclass(frozen=True)
class Case:
    """Samplings in a row, mostly one, and what is promised of their calls of blocks together.

    Attributes:
        family: of `support.models.dits`.
        runs: what is added to each.
        node: whether Compile Model comes before what is added, or after it.
        promised: which calls of blocks run compiled: `all`, `some` or `none`.
        codes: of the reasons for eager calls of blocks, all of them.
        changes: whether what the case adds changes the latent, or each run that of the one before.
        full: whether it is left out of `make test`.
        calls_attention: whether graphs that call an attention function are there.
    """

    family: str
    name: str
    runs: tuple[Run, ...]
    node: Literal["before", "after"] = "after"
    promised: Promise = "all"
    codes: tuple[str, ...] = ()
    changes: bool = True
    full: bool = False
    calls_attention: bool = False

    @property
    def label(self) -> str:
        """The case as rows name it."""
        return f"{self.family}: {self.name}"


def one(family: str, name: str, *added: Addition, **rest: Any) -> Case:
    """A case of one sampling."""
    return Case(family, name, (added,), **rest)
