"""Sample a family uncompiled and compiled, as a first process and as a later one does, and say what is wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..dit_matrix.weights import lora
from ..models import dits
from ..scenes.judge import LEAST_EFFECT, MOST_APART, difference, distance
from ..scenes.nodes import SECOND, compiled
from ..scenes.process import new_process
from .family import Family, FamilySampling


@dataclass(frozen=True)
class Run:
    """One sampling of a family.

    Attributes:
        number: of the size.
        cfg: whether the negative text counts.
        strength: of a LoRA; 0: there is none.
    """

    number: int
    cfg: bool
    strength: float = 0.0


_GUIDED = 3.0  # CFG
FIRST = Run(0, True)  # which compiles
LATER = (FIRST, Run(0, False), Run(1, True), Run(1, False), Run(0, True, 0.6), Run(1, True, -0.8))


@dataclass(frozen=True)
class Calls:
    """What became of calls that graphs could serve.

    Attributes:
        compiled, uncompiled: how many.
        compiles: graphs that were made meanwhile.
        reasons: how many ran uncompiled, by the code of the reason.
    """

    compiled: int
    uncompiled: int
    compiles: int
    reasons: dict[str, int]


@dataclass(frozen=True)
class Row:
    """What came of a family.

    Attributes:
        first: the first sampling.
        later: of six more in the same process: both sizes, CFG on and off, a LoRA at two strengths.
        restarted: the same six in another process.
        relative_l2: the largest of all latents, compiled against uncompiled.
        max_abs_diff_255: of the same, when six standard deviations are the range of pixels.
        furthest: the relative L2 that is taken for equal.
        effect: the least relative L2 by which another strength of the LoRA changes the uncompiled latent.
        comfyui: the host's version.
    """

    family: str
    first: Calls
    later: Calls
    restarted: Calls
    relative_l2: float
    max_abs_diff_255: int
    furthest: float
    effect: float
    comfyui: str


def problems(family: Family, row: Row) -> Iterator[str]:
    """What is wrong with a row."""
    if row.max_abs_diff_255 > MOST_APART:
        yield f"the latents are {row.max_abs_diff_255}/255 apart"
    if not row.relative_l2 <= family.furthest:
        yield f"the latents' relative L2 is {row.relative_l2:.1e}"
    if not row.effect > LEAST_EFFECT:
        yield f"the LoRA changes the latent by {row.effect:.1e} only"
    if row.restarted.compiles:
        yield f"{row.restarted.compiles} graphs were compiled after a restart"
    codes = sorted({*row.later.reasons, *row.restarted.reasons})
    if codes != sorted(family.codes):
        yield f"calls ran uncompiled by {codes}, expected {sorted(family.codes)}"
    for name, calls in (("in the first process", row.later), ("after a restart", row.restarted)):
        if family.promised == "none":
            if calls.compiled:
                yield f"{calls.compiled} calls ran compiled {name}"
        elif not calls.compiled:
            yield f"no call ran compiled {name}"
        if family.promised == "all" and calls.uncompiled:
            yield f"{calls.uncompiled} calls ran uncompiled {name}"


class Gallery:
    """Samples families in this process.

    Args:
        home: a folder for graphs, in which each name of `Family.graphs` has one of its own.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self.rows: list[Row] = []

    def run(self, name: str, family: Family) -> Row:
        """Sample a family; the row is kept."""
        from comfyui_version import __version__

        model = dits.load(family.dit)
        plain = {run: _sampled(name, family, model, run) for run in LATER}
        home = self._home / (family.graphs or name).replace(" ", "-")
        (first, later), latents = self._process(name, family, home, ((FIRST,), LATER))
        (restarted,), again = self._process(name, family, home, (LATER,))
        pairs = [(latent, plain[run]) for run, latent in (*latents, *again)]
        changed = [distance(plain[run], plain[Run(run.number, run.cfg)]) for run in LATER if run.strength]
        row = Row(
            family=name,
            first=first,
            later=later,
            restarted=restarted,
            relative_l2=max(distance(*pair) for pair in pairs),
            max_abs_diff_255=max(difference(*pair) for pair in pairs),
            furthest=family.furthest,
            effect=min(changed),
            comfyui=__version__,
        )
        self.rows.append(row)
        return row

    def _process(
        self, name: str, family: Family, home: Path, phases: tuple[tuple[Run, ...], ...]
    ) -> tuple[list[Calls], list[tuple[Run, torch.Tensor]]]:
        """Sample with the model loaded anew and nothing in the process but what the folder of graphs has."""
        calls: list[Calls] = []
        latents: list[tuple[Run, torch.Tensor]] = []
        with new_process(home) as registry:
            model = compiled(dits.load(family.dit))
            for runs in phases:
                before = _counted(registry)
                latents += [(run, _sampled(name, family, model, run, nodes=True)) for run in runs]
                calls.append(_since(before, _counted(registry)))
        registry.close()
        return calls, latents

    def write(self, path: Path) -> None:
        """Write the rows; those of other families that are there stay."""
        path.parent.mkdir(parents=True, exist_ok=True)
        before = json.loads(path.read_text()) if path.exists() else []
        rows = {row["family"]: row for row in [*before, *map(asdict, self.rows)]}
        path.write_text(json.dumps([*rows.values()], indent=1) + "\n")


def _sampled(name: str, family: Family, model: Any, run: Run, nodes: bool = False) -> torch.Tensor:
    """The latent. `nodes`: whether Compile Model is behind whatever loads a model."""
    sampling = FamilySampling(name, model, family=family, number=run.number)
    sampling.height, sampling.width = sampling.sizes[-2:]
    sampling.tokens = family.tokens[run.number]
    if run.strength:
        lora(run.strength)(sampling)
    for add in family.nodes:
        add(sampling)
    sampling.cfg = max(sampling.cfg, _GUIDED) if run.cfg and family.cfg else 1.0
    if nodes and sampling.second is not None:
        sampling.second = compiled(sampling.second, SECOND)
    return sampling.run()


def _counted(registry: Any) -> tuple[int, int, Counter[str]]:
    counters = registry.counters
    reasons: Counter[str] = Counter()
    for reason, calls in counters.reasons.items():
        reasons[reason.code] += calls
    return counters.compiled_calls, counters.compiles, reasons


def _since(before: tuple[int, int, Counter[str]], after: tuple[int, int, Counter[str]]) -> Calls:
    reasons = after[2] - before[2]
    return Calls(after[0] - before[0], reasons.total(), after[1] - before[1], dict(sorted(reasons.items())))
