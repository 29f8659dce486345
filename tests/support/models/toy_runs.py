"""Runs of small models whose blocks are compiled, and what they report."""

from __future__ import annotations

from onegraph.runtime.calls.run import Run


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
