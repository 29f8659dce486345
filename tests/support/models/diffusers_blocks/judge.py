"""A model run eager and compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...scenes.judge import distance
from .case import FIRST, OTHERS, Case, Sizes, result_of


@dataclass(frozen=True)
class Judged:
    """What became of a model's calls.

    Attributes:
        blocks, compiled: how many blocks it has, and how many of them graphs served.
        calls: of blocks by graphs, after the first call of the model.
        eager: calls of blocks after the first call of the model that ran eager, by the code of the reason.
        worst: the largest relative L2 of a call against eager.
    """

    name: str
    blocks: int
    compiled: int
    calls: int
    eager: Mapping[str, int]
    worst: float


def judged(case: Case, sizes: Sequence[Sizes] = (FIRST, *OTHERS), device: str = "cpu") -> Judged:
    """Run a model eager and compiled, after a first call by which its graphs are compiled or restored."""
    from onegraph.pipelines import compile_module

    model, plain = case.model().to(device), case.model().to(device)
    compiled: Any = compile_module(model)
    worst = 0.0
    with torch.no_grad():
        compiled(**moved(case.arguments(), device))
        first = compiled.onegraph.report().components[0].blocks
        for one in sizes:
            arguments = moved(case.arguments(one), device)
            found, wanted = result_of(compiled(**arguments)), result_of(plain(**arguments))
            worst = max(worst, distance(found, wanted))
    (report,) = compiled.onegraph.report().components
    eager = Counter(report.blocks["eager_codes"]) - Counter(first["eager_codes"])
    calls = report.blocks["calls"] - first["calls"]
    return Judged(case.name, report.blocks["of"], report.blocks["compiled"], calls, dict(eager), worst)


def moved(value: Any, device: str) -> Any:
    """Arguments on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: moved(one, device) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(moved(one, device) for one in value)
    return value
