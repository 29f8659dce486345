"""The runners of a loaded graph: one that is bound to whichever module runs, or one for each module that it serves."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ...backends import Runner, ServesBlocks
from ...graph_cache.entry import Entry
from ..request import Request
from .binding import Binding


def load(request: Request, entry: Entry, folder: Path) -> tuple[Runner, Callable[[], Runner] | None]:
    """Load the graph in a folder.

    Returns:
        A runner, and for a graph of blocks what gives further ones.

    Raises:
        LoadError: the files are damaged, or cannot be used here.
    """
    backend = request.backend
    if entry.manifest.call_rules is None or not isinstance(backend, ServesBlocks):
        return backend.load(folder, request.device), None
    another = backend.loader(folder, request.device)
    return another(), another


def run_once(
    runner: Runner, weights: Mapping[str, torch.Tensor], inputs: tuple[torch.Tensor, ...], device: torch.device
) -> None:
    """Run a call with some weights and release them, so that kernels and libraries are on the device."""
    try:
        runner.bind(weights)
        runner(*inputs)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
    finally:
        runner.close()


@dataclass(eq=False)
class BoundRunner:
    """A runner, and what it is bound to.

    Attributes:
        version: of the module when its weights were checked in full.
    """

    runner: Runner
    binding: Binding | None = None
    version: int | None = None


def _uncaptured(runner: Runner) -> Runner:
    if runner.cuda_graphs is not None:
        runner.cuda_graphs.forbid()
    return runner


class BoundRunners:
    """All runners of a graph. Not thread-safe.

    Where there may be several, none captures its calls: each would try that out by itself, which costs a run some
    calls of each, and would keep activations of its own.

    Args:
        first: there is always one.
        another: gives a further one; None: each module takes the runner from the one before.
    """

    def __init__(self, first: Runner, another: Callable[[], Runner] | None) -> None:
        self.first = BoundRunner(first if another is None else _uncaptured(first))
        self._another = None if another is None else lambda: _uncaptured(another())
        self._spare: list[Runner] = []
        self._by_module: weakref.WeakKeyDictionary[torch.nn.Module, BoundRunner] = weakref.WeakKeyDictionary()

    def of(self, module: torch.nn.Module) -> BoundRunner:
        """The runner for a module.

        Raises:
            LoadError: a further one cannot be loaded.
        """
        if self._another is None:
            return self.first
        runner = self._by_module.get(module)
        if runner is None:
            taken = {id(one) for one in self._by_module.values()}
            free = id(self.first) not in taken
            runner = self.first if free else BoundRunner(self._spare.pop() if self._spare else self._another())
            self._by_module[module] = runner
        return runner

    def ahead(self) -> Runner | None:
        """Load a further one before its module comes, for `keep`; None: one serves all modules. Raises LoadError."""
        return None if self._another is None else self._another()

    def keep(self, runner: Runner) -> None:
        """Keep a runner for the next module."""
        self._spare.append(runner)

    def __iter__(self) -> Iterator[BoundRunner]:
        yield self.first
        yield from (one for one in [*self._by_module.values()] if one is not self.first)

    @property
    def held_bytes(self) -> int:
        """Bytes they keep besides the weights, also after `close` where they do not come back."""
        return sum(one.runner.held_bytes for one in self)

    def close(self) -> None:
        """Release their memory."""
        self._spare.clear()
        for one in self:
            one.binding = None
            one.runner.close()

    def release_orphans(self) -> None:
        """Release the weights of models that are gone, for backends whose runners hold what they are bound to."""
        for one in self:
            if one.binding is not None and one.binding.module() is None and one.runner.held_bytes:
                one.binding = None
                one.runner.close()  # binding it again sets it up again
