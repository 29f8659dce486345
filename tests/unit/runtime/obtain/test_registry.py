from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from support.models import toy
from support.store.entries import publish

from onegraph.common.errors import LoadError
from onegraph.common.reasons import LoadFailed, NoGraph, UnreadableNow
from onegraph.common.refused import Refused
from onegraph.graph_cache import integrity
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.obtain import registry as registry_module
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.request import WhenMissing


def test_eager_never_compiles(tmp_path: Path, source: ModelSource) -> None:
    engine = Registry(Store(tmp_path))
    refused = engine.obtain(toy.request(toy.Toy(), source), "eager", lambda progress: None)
    assert refused == Refused(NoGraph())
    assert engine.counters.compiles == 0
    assert not any(tmp_path.iterdir())


def test_there_is_one_registry_per_process() -> None:
    assert registry_module.registry() is registry_module.registry()


@pytest.mark.parametrize("when_missing", ["wait", "eager"])
def test_a_graph_unreadable_now_is_tried_again(
    when_missing: WhenMissing, tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, request = Registry(Store(tmp_path)), toy.request(toy.Toy(), source)
    entry = publish(engine.store, source, request.key)
    with monkeypatch.context() as patch:
        patch.setattr(integrity, "is_same", mock.Mock(side_effect=OSError(24, "Too many open files")))
        for _ in range(2):
            refused = engine.obtain(request, when_missing, lambda progress: None)
            assert refused == Refused(UnreadableNow("graph.aoti", "[Errno 24] Too many open files"), passing=True)
        assert engine.has(request)
    assert engine.store.lookup(request.key, source) == Hit(entry)  # neither quarantined nor compiled anew
    assert engine.counters.compiles == 0


@pytest.mark.parametrize(("cause", "passing"), [(OSError(24, "Too many open files"), True), (ValueError("bad"), False)])
def test_a_load_that_fails_keeps_the_graph(
    cause: Exception, passing: bool, tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: object) -> None:
        raise LoadError("not loaded") from cause

    engine, request = Registry(Store(tmp_path)), toy.request(toy.Toy(), source)
    entry = publish(engine.store, source, request.key)
    monkeypatch.setattr(type(request.backend), "load", load)
    for _ in range(2):
        refused = engine.obtain(request, "wait", lambda progress: None)
        assert refused == Refused(LoadFailed("not loaded"), passing=passing)
    assert engine.store.lookup(request.key, source) == Hit(entry)  # its files are right
    assert engine.counters.compiles == 0
