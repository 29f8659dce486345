"""Processes that die while they load a graph, told by registries with a backend that only pretends."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.models import toy
from support.store import world

from onegraph.backends.base import AVAILABLE
from onegraph.common.errors import ChildDiedError, CompileError
from onegraph.common.reasons import CompiledAgainLater, DiedInTrial, DiedWhileLoading, TrialPending
from onegraph.common.refused import Refused
from onegraph.compiler.process.job import Job
from onegraph.graph_cache.lookup import Miss
from onegraph.graph_cache.manifest import CONSTANTS_FILE
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.publish import NewEntry
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs.loaded_graph import LoadedGraph, Result
from onegraph.runtime.obtain import child_load_test
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED
from onegraph.runtime.request import Request

INPUTS = (torch.zeros(2, 4, 8, 8), torch.zeros(2, 5, 8))


class Runner(world.Runner):
    """Computes with the module itself, or takes its process down."""

    def __init__(self, module: torch.nn.Module, *, deadly: bool = False) -> None:
        super().__init__(module)
        self._deadly = deadly

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        if self._deadly:
            os._exit(1)
        return super().__call__(*inputs)


class Life:
    """What processes do with one graph, each with a registry of its own."""

    def __init__(self, home: Path, source: ModelSource) -> None:
        self.module = toy.Toy()
        self.store = Store(home)
        self.request = toy.request(self.module, source)
        with self.store.staging() as staged:
            (staged / "graph.aoti").write_bytes(b"code")
            new = NewEntry("any size", ("graph.aoti",), (), compile_seconds=1.0, made_by="0")
            self.entry = self.store.publish(self.request.key, staged, new)

    def deadly(self, *, deadly: bool) -> Request:
        """The request, with a backend whose graph ends the process or not."""
        backend: Any = SimpleNamespace(
            name="inductor",
            can_run=lambda device: AVAILABLE,
            estimate_memory=lambda folder: 0,
            load=lambda folder, device: Runner(self.module, deadly=deadly),
        )
        return dataclasses.replace(self.request, backend=backend)

    def obtain(self, *, deadly: bool = False, engine: Registry | None = None) -> LoadedGraph | Refused:
        engine = engine or Registry(Store(self.store.home), policy=ANY_SPEED)
        return engine.obtain(self.deadly(deadly=deadly), "eager", lambda progress: None)

    def call(self, *, deadly: bool = False) -> Result | Refused:
        graph = self.obtain(deadly=deadly)
        if isinstance(graph, Refused):
            return graph
        sizes = {"batch": 2, "height": 8, "width": 8, "context": 5}
        counters: Any = SimpleNamespace(binds=0, compiled_calls=0, spot_checks=0)
        return graph.call(self.module, INPUTS, sizes, self.module, counters)

    def die(self) -> None:
        process = multiprocessing.get_context("fork").Process(target=self.call, kwargs={"deadly": True})
        process.start()
        process.join()
        assert process.exitcode == 1


class Children:
    """The child processes that try a graph after a death: what each does, and in what folder it was to."""

    def __init__(self) -> None:
        self.end: BaseException | None = None
        self.tried: list[list[str]] = []

    def start(self, job: Job, folder: Path, watch: object, limit: float) -> Any:
        self.tried.append(sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")))
        assert set(job.check_only) == {"graph.aoti", CONSTANTS_FILE} and limit == child_load_test.SECONDS
        if self.end is not None:
            raise self.end
        return SimpleNamespace(cuda_graphs=False)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    children = Children()
    monkeypatch.setattr(child_load_test, "compile_in_child", children.start)
    return children


@pytest.fixture
def life(tmp_path: Path, source: ModelSource, children: Children) -> Life:
    return Life(tmp_path / "home", source)


def test_after_one_death_the_graph_is_tried_again(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    life.die()
    with caplog.at_level(logging.WARNING):
        assert isinstance(life.call(), Result)
    assert [record.getMessage().split(": ", 2)[2] for record in caplog.records] == [
        "the process that loaded the cached graph last died meanwhile; it is tried once more"
    ]
    caplog.clear()
    assert isinstance(life.call(), Result)
    assert not caplog.records


def test_after_one_death_a_child_tries_the_graph_first(life: Life, children: Children) -> None:
    assert isinstance(life.call(), Result) and not children.tried
    life.die()
    assert isinstance(life.call(), Result)
    assert children.tried == [[CONSTANTS_FILE, "graph.aoti"]]
    assert isinstance(life.call(), Result) and len(children.tried) == 1


@pytest.mark.parametrize("error", [ChildDiedError("It was killed (SIGSEGV)."), CompileError("It gave NaN.")], ids=str)
def test_where_the_child_fails_too_it_is_set_aside(error: CompileError, life: Life, children: Children) -> None:
    life.die()
    children.end = error
    assert life.call() == Refused(CompiledAgainLater(DiedInTrial(str(error))))
    assert not life.entry.folder.exists()
    assert isinstance(life.store.find(life.request.key), Miss)


PASSING = [
    ChildDiedError("killed", lasting=False, cause="memory"),
    ChildDiedError("killed", lasting=False, cause="stopped"),
    CompileError("not loaded", lasting=False),
    CompileError("full", lasting=False, cause="device memory"),
    OSError(24, "Too many open files"),
]


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_what_ended_the_child_may_pass(error: Exception, life: Life, children: Children) -> None:
    life.die()
    engine, children.end = Registry(Store(life.store.home), policy=ANY_SPEED), error
    for tries in (1, 2):
        assert life.obtain(engine=engine) == Refused(TrialPending(str(error)))
        assert len(children.tried) == tries
    children.end = None
    assert isinstance(life.obtain(engine=engine), LoadedGraph)


def test_a_child_that_hangs_is_waited_for_once(life: Life, children: Children) -> None:
    life.die()
    engine, children.end = Registry(Store(life.store.home), policy=ANY_SPEED), CompileError("too long", cause="time")
    for _ in range(3):
        assert life.obtain(engine=engine) == Refused(TrialPending("it took more than 120 s"))
    assert len(children.tried) == 1
    assert life.entry.folder.exists()


def test_an_interrupt_while_the_child_tries_goes_through(life: Life, children: Children) -> None:
    life.die()
    children.end = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        life.call()
    children.end = None
    assert isinstance(life.call(), Result)


def test_a_preload_starts_no_child(life: Life, children: Children) -> None:
    life.die()
    engine = Registry(Store(life.store.home), policy=ANY_SPEED)
    engine.preloads.run(life.deadly(deadly=False), 0)
    assert not engine.graphs() and not children.tried
    assert isinstance(life.obtain(engine=engine), LoadedGraph)


def test_after_two_deaths_it_is_set_aside(life: Life) -> None:
    life.die()
    life.die()
    assert life.call() == Refused(CompiledAgainLater(DiedWhileLoading()))
    assert not life.entry.folder.exists()


def test_loading_alone_is_no_success(life: Life) -> None:
    life.die()
    assert isinstance(life.obtain(), LoadedGraph)
    life.die()
    assert isinstance(life.call(), Refused)


def test_a_call_that_went_well_forgets_the_death(life: Life) -> None:
    for _ in range(3):
        life.die()
        assert isinstance(life.call(), Result)


def test_a_start_clears_what_the_dead_left(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Store] = []
    monkeypatch.setattr(Store, "sweep", lambda store: swept.append(store))
    engine = Registry(life.store, policy=ANY_SPEED)
    assert isinstance(life.obtain(engine=engine), LoadedGraph)
    assert swept == [life.store]
