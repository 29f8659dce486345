"""A publisher's first use counts here only where the site says so, and the machine is like the publisher's."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fleet.stores import Publisher, Worker
from support.models import toy

from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.runtime.obtain import published_use
from onegraph.runtime.request import Request

HERS = FirstUse(checked={"n": 1e-6}, eager_ms=2.0, compiled_ms=1.0, environment="ComfyUI 1", size="batch 2")


@pytest.fixture
def request_() -> Request:
    return toy.request(toy.Toy(), ModelSource(None, "0123456789ab"))


def fetched(tmp_path: Path, request: Request, hers: FirstUse, travels: bool = False) -> tuple[Worker, Taken]:
    alice = Publisher(Store(tmp_path / "alice"))
    made = alice.make(request.key.alternatives[int(travels)])
    alice.store.remember(made, hers)
    alice.push(f"file://{tmp_path}/remote", made)
    worker = Worker.at(tmp_path / "home", f"file://{tmp_path}/remote", trusts=[alice])
    found = worker.fetch(request.key)
    assert isinstance(found, Taken)
    return worker, found


@pytest.mark.parametrize("believed", ["fleet", "another, fleet"])
def test_a_first_use_is_believed_where_the_site_says_so(
    believed: str, request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, kept = fetched(tmp_path, request_, HERS.model_copy(update={"environment": request_.environment}))
    monkeypatch.setenv(published_use.VARIABLE, believed)
    assert published_use.believe(worker.store, kept, request_)
    found = worker.store.first_use(kept.entry)
    assert (found.checked, found.eager_ms, found.environment) == ({"n": 1e-6}, 2.0, request_.environment)
    assert not published_use.believe(worker.store, kept, request_)  # what is known here stays


@pytest.mark.parametrize("believed", ["", "another", "flee"])
def test_nobody_else_is_believed(
    believed: str, request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, kept = fetched(tmp_path, request_, HERS.model_copy(update={"environment": request_.environment}))
    monkeypatch.setenv(published_use.VARIABLE, believed)
    assert not published_use.believe(worker.store, kept, request_)
    assert worker.store.first_use(kept.entry) == FirstUse()


@pytest.mark.parametrize("change", [{"environment": "ComfyUI 2"}, {"driver": "12.8"}, {"checked": {}}])
def test_another_machine_tells_nothing(
    change: dict[str, object], request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hers = HERS.model_copy(update={"environment": request_.environment, **change})
    worker, kept = fetched(tmp_path, request_, hers)
    monkeypatch.setenv(published_use.VARIABLE, "fleet")
    assert not published_use.believe(worker.store, kept, request_)
    assert worker.store.first_use(kept.entry) == FirstUse()


def test_a_graph_for_all_machines_of_a_kind_is_compared_on_each(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tried it had another torch, perhaps."""
    hers = HERS.model_copy(update={"environment": request_.environment})
    worker, kept = fetched(tmp_path, request_, hers, travels=True)
    assert kept.graph is not None and len(kept.graph.first_uses) == 1
    monkeypatch.setenv(published_use.VARIABLE, "fleet")
    assert not published_use.believe(worker.store, kept, request_)
    assert worker.store.first_use(kept.entry) == FirstUse()
