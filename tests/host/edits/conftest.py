"""Models that are loaded once and changed again and again; one registry for all cases of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.comfyui.shared_graphs import SharedGraphs, dit_graphs
from support.edits import subjects
from support.edits.subjects import Subject

from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs.spot_check import EVERY_VARIABLE
from onegraph.runtime.obtain import registry as registry_module
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED


@pytest.fixture(scope="module", autouse=True)
def fresh_process(graphs_home: Path) -> Iterator[None]:
    """One registry for all cases of a file: its graphs are restored once. No check against eager hides a wrong call."""
    with pytest.MonkeyPatch.context() as environment, registry_module.using(None):
        environment.setenv(EVERY_VARIABLE, "0")
        # A graph that failed a case serves the next one.
        environment.setattr(Store, "quarantine", lambda *args: None)
        yield
        _closed(registry_module.use(None))


def _closed(registry: Registry | None) -> None:
    for graph in registry.graphs() if registry is not None else ():
        if graph.held_bytes:
            graph.close()


@pytest.fixture(autouse=True)
def no_retired_graph(fresh_process: None, graphs_home: Path) -> None:
    """Another registry where a case before this one made a graph fail."""
    known = registry_module.use(None)
    if known is None or any(graph.retired for graph in known.graphs()):
        _closed(known)
        known = Registry(Store(graphs_home), policy=ANY_SPEED)
    registry_module.use(known)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the host runs nodes."""
    with torch.inference_mode():
        yield


@pytest.fixture
def subject(component: str, request: pytest.FixtureRequest) -> Subject:
    """The one that a case names."""
    found = request.getfixturevalue(component)
    assert isinstance(found, Subject)
    return found


@pytest.fixture(scope="session")
def unet(compiled_once: None, checkpoint: Callable[..., Path]) -> Subject:
    return subjects.unet(checkpoint())


@pytest.fixture(scope="session")
def net(
    compiled_once: None, checkpoint: Callable[..., Path], net_file: Path, graphs_home: Path, shared_graphs: SharedGraphs
) -> Subject:
    shared_graphs.give(graphs_home, None, "sdxl controlnet")
    return subjects.net(checkpoint(), net_file)


@pytest.fixture(scope="session")
def decoder(vae_compiled_once: None, checkpoint: Callable[..., Path]) -> Subject:
    return subjects.vae(checkpoint(vae="both"), "decoder")


@pytest.fixture(scope="session")
def encoder(vae_compiled_once: None, checkpoint: Callable[..., Path]) -> Subject:
    return subjects.vae(checkpoint(vae="both"), "encoder")


@pytest.fixture(scope="session")
def transformer(graphs_home: Path, shared_graphs: SharedGraphs) -> Subject:
    shared_graphs.give(graphs_home, None, *dit_graphs("flux"))
    return subjects.transformer()
