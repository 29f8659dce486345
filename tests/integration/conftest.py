"""One compiled toy graph per run, shared by every test that only needs one to be there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.models import toy
from support.processes import warm_compiles

from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain.registry import Registry

ABOUT_GRAPHS = (
    "test_admission", "test_baked_store", "test_blocks", "test_call_outs", "test_child_load_test", "test_inductor",
    "test_learned_sizes", "test_methods_of_blocks", "test_objects_of_blocks", "test_registry", "test_several_outputs",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", autouse=True)
def compiling_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiles of modules that are about what comes out of them start faster in `make test`."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem in ABOUT_GRAPHS:
            warm_compiles.copies(patch)
        yield


@pytest.fixture(scope="session")
def compiled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's graph folder that holds the toy's graph; read-only by convention, copy it to change it."""
    home = tmp_path_factory.mktemp("compiled")
    engine = Registry(Store(home))
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        warm_compiles.copies(patch)
        graph = engine.obtain(toy.request(toy.Toy(), ModelSource(None, "0123456789ab")), "wait", lambda _: None)
    assert isinstance(graph, LoadedGraph), graph
    assert engine.counters.compiles == 1
    return home


@pytest.fixture
def home(compiled_store: Path, tmp_path: Path) -> Path:
    """A copy of the store with the toy's graph, for tests that change it."""
    return Path(shutil.copytree(compiled_store, tmp_path / "home"))
