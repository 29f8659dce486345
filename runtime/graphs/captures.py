"""The CUDA graphs of a loaded graph's calls."""

from __future__ import annotations

import contextlib
import functools

import torch

from ...backends.capture_stream import capture_stream
from ...backends.cuda_graphs import CudaGraphs, Release, Trials
from .call_thread import in_thread


class Captures:
    """What a graph's only runner captures of its calls; nothing, where there are several or its backend captures none.

    Args:
        trials: which calls pay to be replayed.
        allowed: whether calls may be captured.
    """

    def __init__(self, cuda_graphs: CudaGraphs | None, trials: Trials, allowed: bool) -> None:
        self._cuda_graphs = cuda_graphs
        self._allowed = allowed
        if cuda_graphs is not None:
            cuda_graphs.trials = trials
            if not allowed:
                cuda_graphs.forbid()

    @property
    def held_bytes(self) -> int:
        """Bytes that they hold."""
        return 0 if self._cuda_graphs is None else self._cuda_graphs.held_bytes

    def prepare(self, device: torch.device) -> None:
        """Set up what a capture needs besides the graph, in the thread that will capture."""
        if self._allowed and self._cuda_graphs is not None and device.type == "cuda":
            in_thread(device, functools.partial(capture_stream, device))

    def due(self, inputs: tuple[torch.Tensor, ...]) -> bool:
        """Tell whether this call would be captured."""
        return self._allowed and self._cuda_graphs is not None and self._cuda_graphs.due(inputs)

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
