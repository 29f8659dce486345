from __future__ import annotations

from pathlib import Path

from support import toy

from onegraph.common.reasons import NoGraph
from onegraph.common.shapes import Refused
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime import registry as registry_module
from onegraph.runtime.registry import Registry


def test_eager_never_compiles(tmp_path: Path, source: ModelSource) -> None:
    engine = Registry(Store(tmp_path))
    refused = engine.obtain(toy.request(toy.Toy(), source), "eager", lambda progress: None)
    assert refused == Refused(NoGraph())
    assert engine.counters.compiles == 0
    assert not any(tmp_path.iterdir())


def test_there_is_one_registry_per_process() -> None:
    assert registry_module.registry() is registry_module.registry()
