"""Runs of small models whose blocks are compiled, and what they report."""

from __future__ import annotations

from typing import Any

import torch

from onegraph.runtime.calls.run import Run
from onegraph.runtime.calls.session import BlockRun
from onegraph.runtime.guards.guard_cache import GuardCache


class Reported:
    """A run's report in numbers."""

    run: Run

    @property
    def eager(self) -> dict[str, int]:
        """Calls of blocks that ran eager, by the code of the reason."""
        codes: dict[str, int] = {}
        for reason, calls in self.run.report.blocks.eager.items():
            codes[reason.code] = codes.get(reason.code, 0) + calls
        return codes

    @property
    def compiled(self) -> int:
        return self.run.report.blocks.calls


class Runs(Reported):
    """Runs of one model.

    Args:
        client: who calls it.
        call: makes what it is called with from sizes.
    """

    def __init__(self, model: Any, client: Any, call: Any) -> None:
        self.model = model
        self.run = Run()
        self.blocks = BlockRun(client, self.run, model, GuardCache())
        self._made = call

    def __call__(self, sizes: tuple[int, ...]) -> torch.Tensor:
        with self.blocks.call():
            result: torch.Tensor = self.model(*self._made(*sizes), {})
        return result
