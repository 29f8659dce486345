"""The CUDA graphs of a loaded graph's calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch

from ...backends.capture_stream import capture_stream
from ...backends.cuda_graphs import CudaGraphs, Release, Trials
from .call_thread import in_thread

Marker = Callable[[], contextlib.AbstractContextManager[None]]


class Captures:
    """What a graph's only runner captures of its calls; nothing, where there are several or its backend captures none.

    Args:
        trials: which calls pay to be replayed.
        shown: whether calls can be captured, as a process has shown that may die of it.
        permitted: whether they may be, if they can.
        alone: whether there is one runner.
        marker: while what it gives lasts, a crash is a capture's.

    Attributes:
        possible: whether calls are captured; a step of several graphs' calls may be, too.
        permitted: as the argument.
    """

    def __init__(
        self,
        cuda_graphs: CudaGraphs | None,
        trials: Trials,
        *,
        shown: bool,
        permitted: bool,
        alone: bool,
        marker: Marker,
    ) -> None:
        self._cuda_graphs = cuda_graphs if alone else None
        self.permitted = permitted
        self.possible = shown and permitted
        self.marked = marker
        if cuda_graphs is not None:
            cuda_graphs.trials = trials
            if not (self.possible and alone):
                cuda_graphs.forbid()

    @property
    def held_bytes(self) -> int:
        """Bytes that they hold."""
        return 0 if self._cuda_graphs is None else self._cuda_graphs.held_bytes

    def allow(self) -> None:
        """Capture calls from now on: it was shown that they can be."""
        self.possible = self.permitted
        if self.possible and self._cuda_graphs is not None:
            self._cuda_graphs.allow()

    def prepare(self, device: torch.device) -> None:
        """Set up what a capture needs besides the graph, in the thread that will capture."""
        if self.possible and self._cuda_graphs is not None and device.type == "cuda":
            in_thread(device, functools.partial(capture_stream, device))

    def are_due(self, inputs: tuple[torch.Tensor, ...]) -> bool:
        """Whether a call may be captured, and is made while it is `marked`."""
        return self._cuda_graphs is not None and self._cuda_graphs.due(inputs)

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """While this lasts calls are only made: a capture would spoil what is measured."""
        return contextlib.nullcontext() if self._cuda_graphs is None else self._cuda_graphs.paused()

    def release(self, why: Release) -> int:
        """Release their memory; the bytes."""
        return 0 if self._cuda_graphs is None else self._cuda_graphs.release(why)

    def trim(self, available: int) -> None:
        """Release their memory if it is much beside the bytes that are free."""
        if self._cuda_graphs is not None:
            self._cuda_graphs.trim(available)
