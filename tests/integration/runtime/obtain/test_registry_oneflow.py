"""The registry with OneFlow: exact sizes, rebuilt from a cached graph without a capture, bounded memory."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.models import toy

from onegraph.common import memory
from onegraph.common.reasons import GraphClosed
from onegraph.common.refused import Refused
from onegraph.compiler.process.progress import Progress
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

pytestmark = pytest.mark.skipif(importlib.util.find_spec("oneflow") is None, reason="OneFlow is not installed")


@pytest.fixture(scope="module")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oneflow")


@pytest.fixture
def engine(store_folder: Path) -> Iterator[Registry]:
    """A new process's engine, on the store that the tests before have filled."""
    engine = Registry(Store(store_folder), policy=ANY_SPEED)
    yield engine
    for graph in engine.graphs():
        graph.close()


def obtain(
    engine: Registry, module: toy.Toy, source: ModelSource, stages: list[str] | None = None, **sizes: int
) -> LoadedGraph:
    def watch(progress: Progress) -> None:
        if stages is not None and progress.stage not in stages:
            stages.append(progress.stage)

    graph = engine.obtain(toy.request(module, source, spec=toy.exact(**sizes), engine="oneflow"), "wait", watch)
    assert isinstance(graph, LoadedGraph), graph
    return graph


def call(engine: Registry, graph: LoadedGraph, module: toy.Toy, **sizes: int) -> None:
    inputs = toy.inputs(**sizes)
    served = graph.call(module, inputs, toy.sizes(*inputs), module, engine.counters)
    assert not isinstance(served, Refused), served
    assert served.refusal is None
    torch.testing.assert_close(served.output, module(*inputs), rtol=1e-5, atol=1e-6)


def test_a_second_size_is_rebuilt_from_the_first(engine: Registry, source: ModelSource) -> None:
    module, first, second = toy.Toy(3), list[str](), list[str]()
    call(engine, obtain(engine, module, source, first), module)
    call(engine, obtain(engine, module, source, second, height=12, batch=1), module, height=12, batch=1)
    assert "capturing" in first
    assert "capturing" not in second and "compiling" in second
    assert engine.counters.compiles == 2


def test_a_new_process_restores_both(engine: Registry, source: ModelSource) -> None:
    module = toy.Toy(4)
    call(engine, obtain(engine, module, source), module)
    call(engine, obtain(engine, module, source, height=12, batch=1), module, height=12, batch=1)
    assert (engine.counters.compiles, engine.counters.restores) == (0, 2)


def test_a_replaced_or_written_weight_is_never_stale(engine: Registry, source: ModelSource) -> None:
    module = toy.Toy(5)
    graph = obtain(engine, module, source)
    call(engine, graph, module)
    before = module.mix.weight
    module.mix.weight = torch.nn.Parameter(before * 2, requires_grad=False)  # as a LoRA in ComfyUI
    graph.start_run(module, 1)
    call(engine, graph, module)
    module.mix.weight.mul_(3)
    graph.start_run(module, 1)  # the next run, of a module whose weights look the same
    call(engine, graph, module)
    module.mix.weight = before
    call(engine, graph, module)
    module.inner.bias.add_(1)  # shared with torch: seen at once
    call(engine, graph, module)


def test_live_graphs_stay_within_their_share_of_memory(
    engine: Registry, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = toy.Toy(6)
    graph = obtain(engine, module, source)
    call(engine, graph, module)
    needed = graph.held_bytes
    assert needed > 0
    request = toy.request(module, source, spec=toy.exact(height=12, batch=1), engine="oneflow")
    assert isinstance(
        Registry(engine.store, policy=ANY_SPEED).obtain(request, "wait", lambda progress: None), LoadedGraph
    )  # it is cached
    # Room for one of them, not for both: the one that was not used for longest goes.
    monkeypatch.setattr(memory, "available_bytes", lambda device: 3 * needed - engine.eviction.held_bytes())
    other = engine.obtain(request, "eager", lambda progress: None)
    assert isinstance(other, LoadedGraph), other
    assert graph.retired == GraphClosed()
    assert isinstance(graph.call(module, toy.inputs(), {}, torch.zeros, engine.counters), Refused)
    call(engine, other, module, height=12, batch=1)
    # No room at all.
    monkeypatch.setattr(memory, "available_bytes", lambda device: 0)
    refused = Registry(engine.store, policy=ANY_SPEED).obtain(request, "eager", lambda progress: None)
    assert isinstance(refused, Refused)
    assert refused.text.startswith("oneflow would hold ") and refused.text.endswith("0 MiB are left for graphs")


def test_what_is_kept_is_readable_and_holds_no_pickle(engine: Registry, source: ModelSource) -> None:
    entry = next(engine.store.entries())
    names = set(entry.manifest.files)
    assert names and not any(name.endswith((".pkl", ".pt", ".pt2")) for name in names)
    for name in names:
        if name.endswith(".json"):
            json.loads((entry.folder / name).read_text())
