"""One block in a run of a model."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ...common.reasons import Reason
from ...common.refused import Refused
from ..guards.module_guard import ModuleGuard
from .block_kind import KindGraph
from .client import BlockClient
from .run import Run


@dataclass(eq=False)
class RunBlock:
    """One block in a run.

    Attributes:
        skeleton: the block as graphs are compiled for it.
        architecture: its digest; empty before the first look.
        kinds: of its structure, the one that was called last first.
        refusal: why no graph serves it now, or None.
        failure: why none does for the rest of the run, or None.
        served: whether a graph served its last call: the next one is launched by what is known, and checked later.
        started: ids of the graphs that began a run of it.
    """

    name: str
    block: torch.nn.Module
    guard: ModuleGuard
    skeleton: torch.nn.Module
    version: int = 0
    architecture: str = ""
    kinds: list[KindGraph] = field(default_factory=list)
    refusal: Reason | None = None
    failure: Reason | None = None
    served: bool = False
    started: set[int] = field(default_factory=set)

    def look(self, client: BlockClient, run: Run) -> bool:
        """Note what the block is now; whether it is another structure than at the last look."""
        self.guard.refresh(self.block)
        obtained = client.skeleton(run, self.name, self.block, self.guard)
        self.refusal = obtained.reason if isinstance(obtained, Refused) else self.guard.patched
        skeleton = self.block if isinstance(obtained, Refused) else obtained
        if self.guard.version == self.version and skeleton is self.skeleton:
            return False
        self.version, self.skeleton, self.started = self.guard.version, skeleton, set()
        self.architecture = self.guard.architecture(skeleton)
        return True
