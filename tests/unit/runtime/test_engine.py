from __future__ import annotations

from pathlib import Path

from support import toy

from onegraph.common.shapes import Refused
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime import engine as engine_module
from onegraph.runtime.engine import Engine


def test_eager_never_compiles(tmp_path: Path, source: ModelSource) -> None:
    engine = Engine(Store(tmp_path))
    refused = engine.obtain(toy.request(toy.Toy(), source), "eager", lambda progress: None)
    assert refused == Refused("no graph is cached for this model yet")
    assert engine.counters.compiles == 0
    assert not any(tmp_path.iterdir())


def test_there_is_one_engine_per_process() -> None:
    assert engine_module.engine() is engine_module.engine()
