"""A user's machine without a compiler: what its compiles do is told by the test, and each process is a registry."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from onegraph.common import reasons
from onegraph.common.refused import Refused
from onegraph.compiler.process.job import Compiled
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.admission import Limits
from onegraph.runtime.graphs.loaded_graph import LoadedGraph, Result
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED
from onegraph.runtime.request import Request
from support.models import toy

GIB, MIB = 1 << 30, 1 << 20


class Runner:
    """Computes with the module itself, plus an error."""

    reads_in_place = True
    cuda_graphs = None
    held_bytes = 0
    error = 0.0

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def bind(self, tensors: object) -> None:
        pass

    def close(self) -> None:
        pass

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._module(*inputs) + self.error
        return result


class World:
    """A user's machine: what compiles do on it, and how many there were."""

    def __init__(self, home: Path, source: ModelSource) -> None:
        self.home, self.module = home, toy.Toy()
        self.request = toy.request(self.module, source)
        self.ends: Exception | None = None
        self.compiles = 0
        self.memory, self.card = 8 * GIB, 24 * GIB
        self.seconds = 60.0

    def compile(self, job: object, staging: Path, *args: object) -> Compiled:
        self.compiles += 1
        if self.ends is not None:
            raise self.ends
        (staging / "graph.aoti").write_bytes(b"code")
        return Compiled(("graph.aoti",), (), 1.0)

    def limits(self) -> Limits:
        return Limits(seconds=self.seconds, free=lambda device: self.memory, total=lambda device: self.card)

    def process(self) -> Registry:
        return Registry(Store(self.home), self.limits(), ANY_SPEED)

    def obtain(self, engine: Registry | None = None, request: Request | None = None) -> LoadedGraph | Refused:
        """Ask for the graph, in a new process unless one is given."""
        return (engine or self.process()).obtain(request or self.request, "wait", lambda progress: None)

    def refused(self, engine: Registry | None = None) -> reasons.Reason:
        found = self.obtain(engine)
        assert isinstance(found, Refused)
        return found.reason

    def call(self, graph: LoadedGraph | Refused) -> Result | Refused:
        assert isinstance(graph, LoadedGraph)
        inputs = toy.inputs()
        counters: Any = SimpleNamespace(binds=0, compiled_calls=0, spot_checks=0)
        return graph.call(self.module, inputs, toy.sizes(*inputs), self.module, counters)
