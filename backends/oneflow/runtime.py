"""Loaded jobs: OneFlow's runtime for each, with every tensor's address fixed, and the memory that they share.

OneFlow 0.9.0 frees a job's memory only with its session, which takes every job down. So the memory of closed jobs piles
up while others live. It is given back as soon as none lives; and when more than `MOST_GARBAGE` has piled up, the living
ones are taken down as well and set up again at their next call.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...common.errors import LoadError
from ...common.outputs import Output, output_of
from . import library as oneflow
from .graph import Description, counters
from .library import Library

MOST_GARBAGE = 2**30
"""Bytes that closed jobs may keep while others live: setting a job up again takes seconds."""

_numbers = itertools.count()


def read(library: Library, data: bytes, description: Description) -> Any:
    """Parse a job and check it against its description: a tensor of another shape would end the process.

    Raises:
        LoadError: it is no job, or not the one described.
    """
    job = library.parse_job(data)
    for kind, records in (
        ("input", description.inputs),
        ("variable", description.weights),
        ("output", description.outputs),
    ):
        if library.job_tensors(job, kind) != {r.op: (r.shape, r.dtype) for r in records}:
            raise LoadError("The OneFlow graph's job and its description differ; it runs uncompiled instead.")
    return job


class _Memory:
    """Who lives in OneFlow's session, and what the dead still hold there. Used under `library.lock`."""

    def __init__(self) -> None:
        self.living: weakref.WeakSet[Runtime] = weakref.WeakSet()
        self.garbage = 0
        self.session = 0  # grows whenever all garbage was given back

    def left(self, runtime: Runtime, library: Library) -> None:
        """Note that a runtime was taken down, and give memory back where nobody needs it."""
        self.living.discard(runtime)
        self.garbage += runtime.bytes
        if not self.living or self.garbage > MOST_GARBAGE:
            self.collect(library)

    def lost(self, count: int) -> None:
        """Count the bytes of a runtime that was dropped without `close`. Takes no lock: that may happen anywhere."""
        self.garbage += count

    def collect(self, library: Library) -> None:
        """Give the memory of all closed jobs back, at the cost of setting the living ones up again.

        Nothing happens while graphs of others use OneFlow in this process: they would lose their memory too.
        """
        if not library.alone():
            return
        for runtime in self.living:
            runtime._take_down()
        self.living.clear()
        library.give_back()
        self.garbage = 0
        self.session += 1


memory = _Memory()


class Runtime:
    """A job that can be called from any thread. It keeps the tensors that it was given alive until `close`.

    Locks are taken in one order: `library.lock`, then `_lock`.

    Args:
        weights: torch tensors by weight name, exactly as described: nothing below checks them.
    """

    def __init__(
        self, library: Library, data: bytes, description: Description, weights: Mapping[str, torch.Tensor]
    ) -> None:
        self.bytes = description.held_bytes
        self._library = library
        self._data = data
        self._description = description
        self._weights: Mapping[str, torch.Tensor] | None = weights
        self._lock = threading.Lock()
        self._graph: Any = None
        self._tuples: tuple[Any, Any] | None = None  # of the outputs and of the weights
        self._session = -1
        self._if_dropped: weakref.finalize[..., Runtime] | None = None
        self._set_up()

    def _set_up(self) -> None:
        library, description = self._library, self._description
        with oneflow.lock, self._lock:
            if self._graph is not None or self._weights is None:
                return
            job = read(library, self._data, description)
            graph = library.prepare(job, f"onegraph_{next(_numbers)}")
            shared = {r.op: library.share(self._weights[r.name]) for r in description.weights}
            empty = {
                r.op: library.empty(r.shape, r.dtype, description.device)
                for r in (*description.inputs, *description.outputs)
            }
            self._tuples = library.register(
                graph,
                {op: empty[op] for op in library.job_tensors(job, "input")},
                {r.op: empty[r.op] for r in description.outputs},
                {op: shared[op] for op in library.job_tensors(job, "variable")},
            )
            library.initialise(graph)
            library.trim()
            self._graph = graph
            self._session = memory.session
            memory.living.add(self)
            self._if_dropped = weakref.finalize(self, memory.lost, self.bytes)
            self._if_dropped.atexit = False
            counters.inits += 1

    def _take_down(self) -> None:
        with self._lock:
            self._library.sync()
            self._graph = self._tuples = None
            if self._if_dropped is not None:
                self._if_dropped.detach()

    @property
    def held_bytes(self) -> int:
        """Bytes in OneFlow's session: after `close` they stay until the session's memory is given back."""
        return self.bytes if self._session == memory.session else 0

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Output:
        """One call. When it returns, nothing reads the inputs any more and nothing writes to what it returns.

        Raises:
            LoadError: it is closed.
        """
        library = self._library
        while self._weights is not None:
            with self._lock:
                if self._graph is not None and self._tuples is not None:
                    shared = [library.share(tensor) for tensor in inputs]
                    results = library.run(self._graph, shared, *self._tuples)
                    library.sync()
                    return output_of([library.to_torch(result) for result in results])
            self._set_up()
        raise LoadError("The OneFlow graph was closed; load it again.")

    def close(self) -> None:
        """Take the job down and let go of its weights."""
        with oneflow.lock:
            if self._weights is None:
                return
            self._weights = None
            if self in memory.living:
                self._take_down()
                memory.left(self, self._library)
