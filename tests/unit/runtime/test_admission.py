"""Memory before a compile: what it would take, what the host planned, and what an earlier try ran out of."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import toy

from onegraph.common import memory
from onegraph.common.errors import CompileError
from onegraph.common.shapes import Dim, Refused, ShapeRange, TensorSpec
from onegraph.compiler.supervisor import Progress
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime import admission
from onegraph.runtime.admission import CONTEXT_BYTES, Fits, Limits, Need, Shortage, admit
from onegraph.runtime.engine import Engine, Graph

GIB = 1 << 30


class Gpu:
    """The CPU, counted as a GPU with so much free memory, beside a queue that is idle or not."""

    def __init__(self, free: int, idle: bool = False) -> None:
        self.free = free
        self.idle = idle
        self.limits = Limits(poll_seconds=0.02, applies=lambda device: True, free=lambda device: self.free)


def ignore(progress: Progress) -> None:
    pass


def test_a_compile_fits_with_as_many_helpers_as_do() -> None:
    need = Need(calls=GIB, planned=2 * GIB, helpers=3)
    alone = 3 * GIB + CONTEXT_BYTES
    assert admit(need, alone) == Fits(0)
    assert admit(need, alone + CONTEXT_BYTES) == Fits(1)
    assert admit(need, alone + 2 * CONTEXT_BYTES + GIB) == Fits(2)
    assert admit(need, 1000 * GIB) == Fits(3)
    assert isinstance(admit(need, alone - 1), Refused)


def test_a_compile_that_does_not_fit_says_the_figures() -> None:
    assert admit(Need(GIB, 2 * GIB, 3), 3 * GIB) == Refused(
        "compiling needs 2.1 GiB of GPU memory beside the 2.0 GiB of this run, and 3.0 GiB are free"
    )
    assert admit(Need(GIB, 0, 0), -1) == Refused("compiling needs 2.1 GiB of GPU memory, and 0 MiB are free")


def test_the_estimate_goes_by_the_example_sizes_and_the_widest_layer() -> None:
    """SDXL at 1024x1024, batch 2, float16: ComfyUI's own estimate is 0.5 GiB, twice of that is to be free."""
    dims = (Dim("batch", 1, 8), Dim("height", 8, 256), Dim("width", 8, 256))
    shapes = ShapeRange(dims, (TensorSpec("x", ("batch", 4, "height", "width"), "float16"),))
    module = torch.nn.Linear(1280, 10240, device="meta")
    found = admission.calls_bytes(shapes, {"batch": 2, "height": 128, "width": 128}, module)
    assert found == 2 * 2 * 128 * 128 * 10240 * 2
    assert admission.calls_bytes(shapes, {"height": 512}, module) == 2 * 256 * 8 * 10240 * 2  # within the range


@pytest.mark.parametrize(("free", "tried"), [(10, False), (11, False), (12, False), (13, True)])
def test_another_try_needs_clearly_more_memory(free: int, tried: bool) -> None:
    short = Shortage("It ran out.", torch.device("cpu"), 10 * GIB)
    refused = short.again(free * GIB)
    assert (refused is None) == tried
    if refused is not None:
        assert refused.reason == "It ran out. It is tried again when 12 GiB are free."
    assert isinstance(replace(short, tries=admission.MOST_TRIES).again(1000 * GIB), Refused)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "device memory"),
        (RuntimeError("CUDA error: out of memory"), "device memory"),
        (MemoryError(), "memory"),
        (OSError(12, "Cannot allocate memory"), "memory"),
        (RuntimeError("g++: fatal error: Killed signal terminated program cc1plus"), "memory"),
        (CompileError("what was wrong before", cause="memory"), "memory"),
        (RuntimeError("something else"), ""),
    ],
)
def test_which_errors_say_that_memory_ran_out(error: Exception, cause: str) -> None:
    assert memory.ran_out(error) == cause
    outer = CompileError("AOTInductor could not compile the model.")
    outer.__cause__ = error
    assert memory.ran_out(outer) == cause


@pytest.mark.parametrize("trouble", ["die", "oom"])
def test_a_compile_that_ran_out_of_memory_is_tried_again_when_clearly_more_is_free(
    trouble: str, tmp_path: Path, source: ModelSource
) -> None:
    free = [8 * GIB]
    engine = Engine(Store(tmp_path), Limits(free=lambda device: free[0]))
    module = toy.Toy()
    told: list[Progress] = []

    def tries(state: dict[str, bool]) -> Graph | Refused:
        told.clear()
        return engine.obtain(toy.request(module, source, state=state), "wait", told.append)

    refused = tries({trouble: True})
    assert isinstance(refused, Refused) and told
    assert ("killed (SIGKILL" if trouble == "die" else "ran out of GPU memory (CUDA out") in refused.reason
    for free[0] in (8 * GIB, 7 * GIB, 9 * GIB):
        again = tries({trouble: True})
        assert isinstance(again, Refused) and not told  # no process was started
        assert again.reason == f"{refused.reason} It is tried again when 10 GiB are free."
    free[0] = 10 * GIB
    assert isinstance(tries({trouble: True}), Refused) and told
    assert isinstance(tries({trouble: True}), Refused) and not told
    free[0] = 13 * GIB
    assert isinstance(tries({}), Graph) and told  # what was short is there now
    assert not engine._shortages


def test_a_compile_that_always_runs_out_of_memory_ends_some_time(tmp_path: Path, source: ModelSource) -> None:
    free = [GIB]
    engine, started = Engine(Store(tmp_path), Limits(free=lambda device: free[0])), 0
    for _ in range(2 * admission.MOST_TRIES):
        free[0] *= 4
        told: list[Progress] = []
        assert isinstance(
            engine.obtain(toy.request(toy.Toy(), source, state={"oom": True}), "wait", told.append), Refused
        )
        started += bool(told)
    assert started == admission.MOST_TRIES


def wait_for(condition: object, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_compile_without_room_waits_until_the_queue_is_idle(tmp_path: Path, source: ModelSource) -> None:
    gpu = Gpu(2 * GIB)
    engine, module, told = Engine(Store(tmp_path), gpu.limits), toy.Toy(), list[Progress]()
    request = replace(toy.request(module, source), planned_bytes=GIB, idle=lambda: gpu.idle)
    for _ in range(2):
        refused = engine.obtain(request, "wait", told.append)
        assert refused == Refused(
            "compiling needs 1.1 GiB of GPU memory beside the 1.0 GiB of this run, and 2.0 GiB are free; "
            "it compiles when the queue is empty"
        )
    assert (told, engine.deferred_compiles(), engine.background_compiles()) == ([], 1, 0)
    gpu.free, gpu.idle = GIB, True  # idle, but memory does not suffice
    time.sleep(0.2)
    assert (engine.deferred_compiles(), engine.background_compiles()) == (1, 0)
    gpu.free = 2 * GIB
    wait_for(lambda: engine.counters.compiles)
    wait_for(lambda: not engine.background_compiles())
    assert engine.deferred_compiles() == 0
    assert isinstance(engine.obtain(request, "wait", told.append), Graph)
    assert (told, engine.counters.restores) == ([], 1)


def test_a_later_run_with_room_compiles_what_waits(tmp_path: Path, source: ModelSource) -> None:
    gpu = Gpu(0)
    engine = Engine(Store(tmp_path), gpu.limits)
    request = replace(toy.request(toy.Toy(), source), idle=lambda: False)
    assert isinstance(engine.obtain(request, "wait", ignore), Refused)
    assert engine.deferred_compiles() == 1
    gpu.free = 64 * GIB
    assert isinstance(engine.obtain(request, "wait", ignore), Graph)
    assert (engine.deferred_compiles(), engine.counters.compiles) == (0, 1)


def test_a_deferred_compile_gives_way_to_a_run_that_needs_its_memory(tmp_path: Path, source: ModelSource) -> None:
    gpu = Gpu(0)
    engine = Engine(Store(tmp_path), gpu.limits)
    request = replace(toy.request(toy.Toy(), source, state={"sleep": 600}), planned_bytes=GIB, idle=lambda: gpu.idle)
    assert isinstance(engine.obtain(request, "background", ignore), Refused)
    gpu.free, gpu.idle = 2 * GIB, True
    wait_for(engine.background_compiles)
    meanwhile = engine.obtain(request, "wait", ignore)  # does not wait for it
    assert isinstance(meanwhile, Refused) and "still compiling in the background" in meanwhile.reason
    gpu.idle = False
    time.sleep(0.5)
    assert engine.background_compiles() == 1  # there is room for both
    gpu.free = GIB - 1
    wait_for(lambda: not engine.background_compiles())
    assert engine.deferred_compiles() == 1
    assert not list(tmp_path.rglob("*.*"))
    engine._deferred.take((request.key.digest, str(request.device)))


def test_where_nobody_can_tell_whether_the_queue_is_idle_nothing_waits(tmp_path: Path, source: ModelSource) -> None:
    engine = Engine(Store(tmp_path), Gpu(0).limits)
    refused = engine.obtain(toy.request(toy.Toy(), source), "wait", ignore)
    assert isinstance(refused, Refused) and refused.reason.endswith("0 MiB are free")
    assert engine.deferred_compiles() == 0


def test_what_waits_keeps_no_model_alive(tmp_path: Path, source: ModelSource) -> None:
    import weakref

    engine, module = Engine(Store(tmp_path), Gpu(0).limits), toy.Toy()
    died = weakref.ref(module)
    request = replace(toy.request(module, source), idle=lambda: False)
    assert isinstance(engine.obtain(request, "wait", ignore), Refused)
    del module, request
    assert engine.deferred_compiles() == 1
    assert died() is None


def test_on_a_cpu_memory_is_not_looked_at(tmp_path: Path, source: ModelSource) -> None:
    assert not Limits().applies(torch.device("cpu"))
    assert Limits().applies(torch.device("cuda", 0))
    engine, looked = Engine(Store(tmp_path), Limits(free=lambda device: looked.append(device) or 0)), list[object]()
    assert isinstance(engine.obtain(toy.request(toy.Toy(), source, spec=toy.exact()), "background", ignore), Refused)
    assert (engine.background_compiles(), engine.deferred_compiles(), looked) == (1, 0, [])
