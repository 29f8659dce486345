"""Sample a case plainly and with its blocks compiled, and say what is wrong."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..models import dits
from ..scenes.judge import FURTHEST, LEAST_EFFECT, MOST_APART, broken, difference, distance
from ..scenes.nodes import SECOND, restored
from ..scenes.sampling import Sampling
from .case import Case, Run


@dataclass(frozen=True)
class Row:
    """What came of a case: a row of build/families.json.

    Attributes:
        compiled_calls, eager_calls: of blocks.
        kinds: graphs that served, in all runs.
        reasons: codes of the reasons for eager calls.
        relative_l2: of latents, plain and compiled.
        max_abs_diff_255: of the same, when three standard deviations are the range of pixels.
        effect: relative L2 by which what the case adds changes the plain latent; None where it need not.
    """

    family: str
    case: str
    compiled_calls: int
    kinds: int
    eager_calls: int
    reasons: list[str]
    relative_l2: float
    max_abs_diff_255: int
    effect: float | None


def problems(case: Case, row: Row) -> Iterator[str]:
    """What is wrong with a row."""
    if row.max_abs_diff_255 > MOST_APART:
        yield f"the latents are {row.max_abs_diff_255}/255 apart"
    if not row.relative_l2 <= FURTHEST:
        yield f"the latents' relative L2 is {row.relative_l2:.1e}"
    if row.effect is not None and not row.effect > LEAST_EFFECT:
        yield f"what the case adds changes the latent by {row.effect:.1e} only"
    yield from broken(case.promised, case.codes, row.compiled_calls, row.eager_calls, row.reasons)


class Families:
    """Samples cases in this process; no case compiles: what has no graph runs eager."""

    def __init__(self) -> None:
        self._models: dict[str, Any] = {}
        self.rows: list[Row] = []

    def run(self, case: Case) -> Row:
        """Sample a case; the row is kept."""
        from onegraph.host.show import status
        from onegraph.runtime.obtain.registry import registry

        apart, furthest, kinds, calls = 0, 0.0, 0, 0
        before: Counter[Any] = Counter(registry().counters.reasons)
        plain: list[torch.Tensor] = []
        for run in case.runs:
            plain.append(self._sampled(case, run, "off"))
            status.last_runs.clear()
            found = self._sampled(case, run, case.node)
            for report in status.last_runs.values():
                told = report.to_json()["blocks"]
                kinds, calls = max(kinds, told["kinds"]), calls + told["calls"]
            apart = max(apart, difference(found, plain[-1]))
            furthest = max(furthest, distance(found, plain[-1]))
        reasons = Counter(registry().counters.reasons)
        reasons.subtract(before)
        eager = +reasons
        row = Row(
            family=case.family,
            case=case.name,
            compiled_calls=calls,
            kinds=kinds,
            eager_calls=sum(eager.values()),
            reasons=sorted({reason.code for reason in eager}),
            relative_l2=furthest,
            max_abs_diff_255=apart,
            effect=self._effect(case, plain) if case.changes else None,
        )
        self.rows.append(row)
        return row

    def _effect(self, case: Case, plain: list[torch.Tensor]) -> float:
        """The least that one run differs from the one before, or the only one from what is without the addition."""
        if len(plain) == 1:
            plain = [self._sampled(case, (), "off"), *plain]
        return min(distance(b, a) for a, b in itertools.pairwise(plain))

    def model(self, family: str) -> Any:
        """A family's model, loaded once."""
        if family not in self._models:
            self._models[family] = dits.load(family)
        return self._models[family]

    def _sampled(self, case: Case, run: Run, node: str) -> torch.Tensor:
        sampling = Sampling(case.family, self.model(case.family))
        if node == "before":
            sampling.model = restored(sampling.model)
        for add in run:
            add(sampling)
        if node == "after":
            sampling.model = restored(sampling.model)
        if node != "off" and sampling.second is not None:
            sampling.second = restored(sampling.second, SECOND)
        return sampling.run()

    def write(self, path: Path) -> None:
        """Write the rows; those of other cases that are there stay."""
        path.parent.mkdir(parents=True, exist_ok=True)
        before = json.loads(path.read_text()) if path.exists() else []
        rows = {(row["family"], row["case"]): row for row in [*before, *map(asdict, self.rows)]}
        path.write_text(json.dumps([*rows.values()], indent=1) + "\n")
