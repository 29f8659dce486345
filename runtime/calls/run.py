"""One run of one component: a sampling, a decode, an encode."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.torch_guards import TensorLooks
from ..graphs.binding import Held
from ..guards.module_guard import ModuleGuard
from ..request import Request
from .run_report import RunReport
from .seen_calls import Seen
from .weight_source import WeightSource


@dataclass
class Run:
    """What is known during a run. A client's own run adds where the weights are.

    Attributes:
        refusal: why no graph serves this run at all, or None.
        version: of the module when the requests were made.
        served: whether a graph served the last call.
        refused: by key digest, why there is no graph in this run.
        bound: ids of the graphs that were bound in this run.
        requests: with what the inputs of their calls are named and look like, until something changes.
        seen: by key digest, what inputs of a graph were like.
        guard: on the module that runs; None: it could not be inspected.
        held: keeps the memory that the graphs of this run read; None: each call keeps it while it lasts.
    """

    refusal: Reason | None = None
    version: int = 0
    served: bool = False
    report: RunReport = field(default_factory=RunReport)
    refused: dict[str, Reason] = field(default_factory=dict)
    bound: set[int] = field(default_factory=set)
    requests: list[tuple[tuple[str, ...], TensorLooks, Request]] = field(default_factory=list)
    seen: dict[str, list[Seen]] = field(default_factory=dict)
    guard: ModuleGuard | None = None
    held: Held | None = None

    def inspect(self, module: torch.nn.Module) -> Reason | None:
        """Check the module that runs and take down what it is now; why no graph serves this call, or None."""
        return self.refusal

    def unchanged(self, module: torch.nn.Module) -> bool:
        """Whether `inspect` would find what it found last, and no refusal. Changes nothing of the run."""
        return self.refusal is None

    @property
    def may_check_later(self) -> bool:
        """Whether a call may be prepared by what `inspect` found last, and checked afterwards."""
        return True

    @property
    def weights_version(self) -> int | None:
        """A number by the weights' metadata; None: they may have been written to since the last run."""
        return self.version

    @property
    def filling_s(self) -> float:
        """Seconds spent so far to bring weights to the device, which is no part of restoring a graph."""
        return 0.0

    def skeleton(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module as a graph is compiled for it."""
        return module

    def weights(self, module: torch.nn.Module) -> contextlib.AbstractContextManager[torch.nn.Module | Refused]:
        """The module with all its weights where a graph can read them, as long as this lasts."""
        return contextlib.nullcontext(module)

    def timesteps(self, options: Any) -> Sequence[float]:
        """The timesteps of a sampling whose model has these options, as the model is given them; empty: not known."""
        return ()

    def weight_source(self, module: torch.nn.Module, refusal: Reason) -> WeightSource | None:
        """What brings the weights of blocks one by one, where `weights` refused to have all of them; None: nothing."""
        return None
