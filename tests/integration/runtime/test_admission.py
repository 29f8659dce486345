"""Memory before a compile: what it would take, what the host planned, and what an earlier try ran out of."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.models import toy
from support.processes import priority

from onegraph.common.refused import Refused
from onegraph.compiler.process.progress import Progress
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import KEY_FILE
from onegraph.runtime.admission import Limits
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain.registry import Registry

GIB = 1 << 30
WHEN = "It is tried again when 10 GiB are free, a day later, or after `onegraph retry`."


class Gpu:
    """The CPU, counted as a GPU with so much free memory, beside a queue that is idle or not."""

    def __init__(self, free: int, idle: bool = False) -> None:
        self.free = free
        self.idle = idle
        self.limits = Limits(poll_seconds=0.02, applies=lambda device: True, free=lambda device: self.free)


def ignore(progress: Progress) -> None:
    pass


@pytest.mark.parametrize("trouble", [pytest.param("die", marks=pytest.mark.full), "oom"])
def test_a_compile_is_retried_when_more_memory_is_free(trouble: str, tmp_path: Path, source: ModelSource) -> None:
    free = [8 * GIB]
    engine = Registry(Store(tmp_path), Limits(free=lambda device: free[0], total=lambda device: 16 * GIB))
    module = toy.Toy()
    told: list[Progress] = []

    def tries(state: dict[str, bool]) -> LoadedGraph | Refused:
        told.clear()
        return engine.obtain(toy.request(module, source, state=state), "wait", told.append)

    refused = tries({trouble: True})
    assert isinstance(refused, Refused) and told
    assert ("killed (SIGKILL" if trouble == "die" else "ran out of GPU memory (CUDA out") in refused.text
    for free[0] in (8 * GIB, 7 * GIB, 9 * GIB):
        again = tries({trouble: True})
        assert isinstance(again, Refused) and not told  # no process was started
        assert again.text == f"{refused.text} {WHEN}"
    free[0] = 10 * GIB
    assert isinstance(tries({trouble: True}), Refused) and told
    assert isinstance(tries({trouble: True}), Refused) and not told
    free[0] = 13 * GIB
    assert isinstance(tries({}), LoadedGraph) and told  # what was short is there now
    assert not engine.store.notes.failures(toy.request(module, source).key)


def test_a_compile_without_room_waits_for_the_queue(tmp_path: Path, source: ModelSource) -> None:
    gpu = Gpu(2 * GIB)
    engine, module, told = Registry(Store(tmp_path), gpu.limits), toy.Toy(), list[Progress]()
    request = replace(toy.request(module, source), planned_bytes=GIB, idle=lambda: gpu.idle)
    for _ in range(2):
        refused = engine.obtain(request, "wait", told.append)
        assert isinstance(refused, Refused)
        assert refused.text == (
            "compiling needs 1.1 GiB of GPU memory beside the 1.0 GiB of this run, and 2.0 GiB are free; "
            "it compiles when the queue is empty"
        )
    assert (told, engine.compiles.deferred(), engine.compiles.in_background()) == ([], 1, 0)
    gpu.free, gpu.idle = GIB, True  # idle, but memory does not suffice
    time.sleep(0.2)
    assert (engine.compiles.deferred(), engine.compiles.in_background()) == (1, 0)
    gpu.free = 2 * GIB
    priority.wait_for(lambda: engine.counters.compiles)
    priority.wait_for(lambda: not engine.compiles.in_background())
    assert engine.compiles.deferred() == 0
    assert isinstance(engine.obtain(request, "wait", told.append), LoadedGraph)
    assert (told, engine.counters.restores) == ([], 1)


@pytest.mark.full
def test_a_later_run_with_room_compiles_what_waits(tmp_path: Path, source: ModelSource) -> None:
    gpu = Gpu(0)
    engine = Registry(Store(tmp_path), gpu.limits)
    request = replace(toy.request(toy.Toy(), source), idle=lambda: False)
    assert isinstance(engine.obtain(request, "wait", ignore), Refused)
    assert engine.compiles.deferred() == 1
    gpu.free = 64 * GIB
    assert isinstance(engine.obtain(request, "wait", ignore), LoadedGraph)
    assert (engine.compiles.deferred(), engine.counters.compiles) == (0, 1)


def test_a_deferred_compile_yields_memory_to_a_run(tmp_path: Path, source: ModelSource) -> None:
    gpu = Gpu(0)
    engine = Registry(Store(tmp_path), gpu.limits)
    request = replace(toy.request(toy.Toy(), source, state={"sleep": 600}), planned_bytes=GIB, idle=lambda: gpu.idle)
    assert isinstance(engine.obtain(request, "background", ignore), Refused)
    gpu.free, gpu.idle = 2 * GIB, True
    priority.wait_for(engine.compiles.in_background)
    meanwhile = engine.obtain(request, "wait", ignore)  # does not wait for it
    assert isinstance(meanwhile, Refused) and "still compiling in the background" in meanwhile.text
    gpu.idle = False
    time.sleep(0.5)
    assert engine.compiles.in_background() == 1  # there is room for both
    gpu.free = GIB - 1
    priority.wait_for(lambda: not engine.compiles.in_background())
    assert engine.compiles.deferred() == 1
    assert [path for path in tmp_path.rglob("*.*") if path.is_file()] == [tmp_path / KEY_FILE]
    engine.compiles._deferred.take((request.key.digest, str(request.device)))


def test_on_a_cpu_memory_is_not_looked_at(tmp_path: Path, source: ModelSource) -> None:
    assert not Limits().applies(torch.device("cpu"))
    assert Limits().applies(torch.device("cuda", 0))
    engine, looked = Registry(Store(tmp_path), Limits(free=lambda device: looked.append(device) or 0)), list[object]()
    assert isinstance(engine.obtain(toy.request(toy.Toy(), source, spec=toy.exact()), "background", ignore), Refused)
    assert (engine.compiles.in_background(), engine.compiles.deferred(), looked) == (1, 0, [])
