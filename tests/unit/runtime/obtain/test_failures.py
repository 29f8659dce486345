"""Nothing is compiled twice for one cause, whatever the number of processes: each registry is one."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from support.models import toy
from support.processes.faults import disk
from support.store.entries import die_while_loading, quarantine
from support.store.world import GIB, MIB, Runner, World

from onegraph.backends.inductor import InductorBackend
from onegraph.common import reasons
from onegraph.common.errors import CaptureError, ChildDiedError, CompileError, LoadError
from onegraph.common.reasons import CompileFailed, NotSaved, WaitsADay, WaitsForChange, WaitsForDisk, WaitsForMemory
from onegraph.common.refused import Refused
from onegraph.graph_cache import copies
from onegraph.graph_cache.disk.inventory import over
from onegraph.graph_cache.home import Home
from onegraph.graph_cache.machine_notes import Failure, Kind
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs.loaded_graph import LoadedGraph, Result
from onegraph.runtime.obtain import child_load_test, compiles, failures
from onegraph.runtime.obtain.failures import waits_for_more
from onegraph.runtime.obtain.registry import Registry

FULL, RAN_OUT = NotSaved("No space left on device", "full"), CompileFailed("It ran out.")
OTHER = ModelSource(None, "fedcba987654")


@pytest.fixture
def world(tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path / "home", source)
    monkeypatch.setattr(compiles, "compile_in_child", world.compile)
    monkeypatch.setattr(InductorBackend, "load", lambda backend, folder, device: Runner(world.module))
    return world


def lacked(kind: Kind, free: int) -> Failure:
    """A failure with so many bytes free."""
    return Failure(kind=kind, reason={}, free=free)


def changed_version(world: World, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "__version__", "99")


def changed_torch(world: World, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "__version__", "99.0.0")


def changed_compiler(world: World, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InductorBackend, "compiler", lambda backend: "another")


def changed_host(world: World, patch: pytest.MonkeyPatch) -> None:
    world.request = dataclasses.replace(world.request, environment="another")


def forgotten(world: World, patch: pytest.MonkeyPatch) -> None:
    assert [found.component for found in Store(world.home).notes.forget_failures()] == ["toy"]


CHANGES = [changed_version, changed_torch, changed_compiler, changed_host, forgotten]
Change = Callable[[World, pytest.MonkeyPatch], None]


@pytest.mark.parametrize("change", CHANGES)
def test_a_compile_that_fails_waits_for_a_change(change: Change, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ends = CompileError("The compiler said no.")
    same = world.process()
    assert world.refused(same) == CompileFailed("The compiler said no.")
    facts = ("compiler", "driver", "host", "onegraph", "torch")
    for engine in (same, None, None):
        assert world.refused(engine) == WaitsForChange(CompileFailed("The compiler said no."), facts, 1)
    assert world.compiles == 1
    assert world.obtain().text == (  # type: ignore[union-attr]
        "The compiler said no. It is tried again with another version of OneGraph, torch, ComfyUI, the C++ compiler, "
        "the driver, a day later, or after `onegraph retry`."
    )
    change(world, monkeypatch)
    world.ends = None
    assert isinstance(world.obtain(same), LoadedGraph)
    assert world.compiles == 2
    assert not Store(world.home).notes.read().failures  # it worked


def test_what_a_compile_lacked_may_be_there_after_days(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a header: no fact tells of it. What it costs is bounded, since each wait is twice the one before."""
    world.ends, now = CompileError("Python.h: No such file or directory."), [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    for days, text in ((1, "a day later, "), (2, "2 days later, "), (4, "4 days later, ")):
        assert isinstance(world.refused(), CompileFailed)
        compiles = world.compiles
        now[0] += days * 24 * 3600 - 60
        why = world.refused()
        assert isinstance(why, WaitsForChange) and text in why.text and world.compiles == compiles
        now[0] += 120
    world.ends = None
    assert isinstance(world.obtain(), LoadedGraph)


def test_a_compile_that_took_too_long_waits_for_more_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ends, now = CompileError("It took too long.", cause="time"), time.time()
    assert isinstance(world.refused(), CompileFailed)
    monkeypatch.setattr(time, "time", lambda: now + 400 * 24 * 3600)
    assert isinstance(world.refused(), WaitsForChange) and world.compiles == 1


def test_another_model_of_the_key_fails_alike(world: World) -> None:
    world.ends = CompileError("The compiler said no.")
    world.refused()
    world.request = dataclasses.replace(world.request, source=OTHER)
    assert isinstance(world.refused(), WaitsForChange) and world.compiles == 1


def test_a_model_that_cannot_be_captured_is_known(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = mock.Mock(side_effect=CaptureError("It branches."))
    monkeypatch.setattr(compiles.skeleton, "dump", dump)
    assert [type(world.refused()) for _ in range(3)] == [reasons.CaptureFailed, WaitsForChange, WaitsForChange]
    assert dump.call_count == 1


def test_a_compile_that_took_too_long_gets_more_time(world: World) -> None:
    world.ends = CompileError("It was stopped.", cause="time")
    for _ in range(3):
        world.refused()
    assert world.compiles == 1
    assert "ONEGRAPH_COMPILE_TIMEOUT" in world.obtain().text  # type: ignore[union-attr]
    world.seconds = 600.0
    world.refused()
    assert world.compiles == 2


@pytest.mark.parametrize("new_process", [False, True])
def test_a_compiler_that_crashes_is_tried_twice(new_process: bool, world: World) -> None:
    world.ends = ChildDiedError("It was killed (SIGSEGV).", lasting=False)
    engine = None if new_process else world.process()
    found = [type(world.refused(engine)) for _ in range(4)]
    assert found == [CompileFailed, CompileFailed, WaitsForChange, WaitsForChange]
    assert world.compiles == 2


def test_a_compile_that_somebody_ended_is_tried_again(world: World) -> None:
    world.ends = ChildDiedError("It was killed (SIGTERM).", lasting=False, cause="stopped")
    same = world.process()
    assert [type(world.refused(same)) for _ in range(3)] == [CompileFailed, CompileFailed, WaitsForChange]
    assert not Store(world.home).notes.read().failures
    world.ends = None
    assert isinstance(world.obtain(), LoadedGraph)


def test_memory_that_ran_out_is_waited_for(world: World) -> None:
    world.ends = CompileError("It ran out of memory.", lasting=False, cause="memory")
    assert isinstance(world.refused(), CompileFailed)
    for world.memory in (8 * GIB, 9 * GIB):
        assert world.refused() == WaitsForMemory(CompileFailed("It ran out of memory."), 10 * GIB)
    assert world.compiles == 1
    world.memory = 10 * GIB
    assert isinstance(world.refused(), CompileFailed) and world.compiles == 2


def test_a_compile_always_out_of_memory_ends_some_time(world: World) -> None:
    world.ends, world.card = CompileError("It ran out of memory.", lasting=False, cause="memory"), GIB << 20
    for _ in range(2 * failures.MOST_TRIES):
        world.memory *= 4
        world.refused()
    assert world.compiles == failures.MOST_TRIES


def test_no_more_memory_is_waited_for_than_there_is(world: World) -> None:
    world.memory = 20 * GIB
    world.ends = CompileError("It ran out of memory.", lasting=False, cause="memory")
    assert isinstance(world.refused(), CompileFailed)
    assert world.refused() == WaitsForMemory(CompileFailed("It ran out of memory."), int(0.95 * 24 * GIB))
    world.card = 20 * GIB  # as in another slot of the machine
    assert world.refused() == WaitsADay(CompileFailed("It ran out of memory."))
    assert world.compiles == 1


@pytest.mark.parametrize("cause", ["memory", "disk"])
def test_what_a_machine_lacked_is_forgotten_after_a_day(
    cause: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "free_bytes", lambda folder: 300 << 20)
    monkeypatch.setattr(failures, "total_bytes", lambda folder: 100 << 30)
    world.ends, now = CompileError("It lacked something.", lasting=False, cause=cause), time.time()
    for day in range(1, 8):
        assert isinstance(world.refused(), CompileFailed)
        assert "a day later, or after `onegraph retry`" in world.refused().text
        assert world.compiles == day
        monkeypatch.setattr(time, "time", lambda day=day: now + day * 24 * 3600 + 60)


def test_one_sigkill_is_no_proof_for_another_process(world: World) -> None:
    world.ends = ChildDiedError("It was killed (SIGKILL).", lasting=False, cause="memory")
    same = world.process()
    assert isinstance(world.refused(same), CompileFailed)
    assert isinstance(world.refused(same), WaitsForMemory)
    assert isinstance(world.refused(), CompileFailed) and world.compiles == 2
    assert isinstance(world.refused(), WaitsForMemory) and world.compiles == 2


@pytest.mark.parametrize(("free", "tried"), [(10, False), (11, False), (12, False), (13, True)])
def test_another_try_needs_clearly_more_memory(free: int, tried: bool) -> None:
    short = lacked("memory", 10 * GIB)
    why = waits_for_more(short, RAN_OUT, free * GIB, 64 * GIB)
    assert (why is None) == tried
    if why is not None:
        again = "It is tried again when 12 GiB are free, a day later, or after `onegraph retry`."
        assert why.text == f"It ran out. {again}"
    often = short.model_copy(update={"tries": failures.MOST_TRIES})
    assert waits_for_more(often, RAN_OUT, 1000 * GIB, 1000 * GIB) == reasons.TriedTooOften(RAN_OUT, failures.MOST_TRIES)


@pytest.mark.parametrize(
    ("before", "wanted"), [(10, 12.5), (18, 22.5), (21, 22.8), (22.2, 22.8), (22.5, None), (23.5, None), (24, None)]
)
def test_no_more_is_wanted_than_a_card_has(before: float, wanted: float | None) -> None:
    short = lacked("memory", int(before * GIB))
    why = waits_for_more(short, RAN_OUT, short.free, 24 * GIB)
    if wanted is None:
        assert why == WaitsADay(RAN_OUT)
        assert why.text == "It ran out. It is tried again a day later, or after `onegraph retry`."
    else:
        assert why == WaitsForMemory(RAN_OUT, int(wanted * GIB))
        assert waits_for_more(short, RAN_OUT, why.wanted, 24 * GIB) is None


@pytest.mark.parametrize(
    ("before", "now", "tried"), [(0, 255, False), (0, 256, True), (10240, 12799, False), (10240, 12800, True)]
)
def test_another_try_needs_clearly_more_of_a_disk(before: int, now: int, tried: bool) -> None:
    assert (waits_for_more(lacked("disk", before * MIB), FULL, now * MIB, 100_000 * MIB) is None) == tried


def test_no_more_is_wanted_than_a_disk_has() -> None:
    wanted = WaitsForDisk(FULL, 950 * MIB)
    assert waits_for_more(lacked("disk", 700 * MIB), FULL, 700 * MIB, 1000 * MIB) == wanted
    assert waits_for_more(lacked("disk", 900 * MIB), FULL, 700 * MIB, 1000 * MIB) == WaitsADay(FULL)


# Saving ---------------------------------------------------------------------------------------------------------


def unable(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Have nothing be published."""
    monkeypatch.setattr(Home, "keep", mock.Mock(side_effect=OSError(number, "no")))


def test_no_copy_beside_the_checkpoint_costs_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    source = ModelSource(models / "photo.safetensors", "0123456789ab")
    world.request = dataclasses.replace(world.request, source=source)
    (models / "photo.safetensors").touch()
    monkeypatch.setattr(copies, "put", mock.Mock(side_effect=OSError(errno.EIO, "no")))
    graph = world.obtain()
    assert isinstance(graph, LoadedGraph) and graph.entry.folder.is_relative_to(world.home)
    assert isinstance(world.obtain(), LoadedGraph) and world.compiles == 1
    assert [*models.rglob("manifest.json")] == []


def test_a_full_disk_costs_one_compile_in_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [100 << 20]
    monkeypatch.setattr(failures, "free_bytes", lambda folder: free[0])
    monkeypatch.setattr(failures, "total_bytes", lambda folder: 100 << 30)
    with monkeypatch.context() as patch:
        unable(patch, errno.ENOSPC)
        assert isinstance(world.refused(), NotSaved)
        for _ in range(3):
            assert isinstance(world.refused(), WaitsForDisk)
    assert world.compiles == 1
    free[0] = 400 << 20
    assert isinstance(world.obtain(), LoadedGraph) and world.compiles == 2


def test_a_full_disk_costs_one_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: ModelSource) -> None:
    tries, free = [0], [100 * MIB]

    def compiled(*args: Any) -> None:
        tries[0] += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(failures, "free_bytes", lambda folder: free[0])
    monkeypatch.setattr(failures, "total_bytes", lambda folder: 100_000 * MIB)
    monkeypatch.setattr(compiles, "compile_in_child", compiled)
    engine, request = Registry(Store(tmp_path / "home")), toy.request(toy.Toy(), source)

    def obtain() -> Refused:
        refused = engine.obtain(request, "wait", lambda progress: None)
        assert isinstance(refused, Refused)
        return refused

    full = obtain()
    assert isinstance(full.reason, NotSaved)
    for _ in range(3):
        assert obtain() == Refused(WaitsForDisk(full.reason, 356 * MIB))
    assert tries == [1]
    assert obtain().text == (
        "The graph could not be saved (No space left on device); free some disk space. "
        "It is tried again when 356 MiB of the disk are free, a day later, or after `onegraph retry`."
    )
    free[0] = 400 * MIB
    assert isinstance(obtain().reason, NotSaved) and tries == [2]
    free[0] = 1000 * MIB

    def fails(*args: Any) -> None:
        raise CompileError("It failed.")

    monkeypatch.setattr(compiles, "compile_in_child", fails)
    assert obtain().reason == CompileFailed("It failed.")


def test_where_nothing_was_compiled_it_is_tried_again(
    tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("no folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "home"))
    engine, request = Registry(Store(tmp_path / "home")), toy.request(toy.Toy(), source)
    for _ in range(2):
        refused = engine.obtain(request, "wait", lambda progress: None)
        assert isinstance(refused, Refused) and isinstance(refused.reason, NotSaved)


@pytest.mark.parametrize("which", ["graphs", "temporary files"])
def test_a_disk_that_was_full_meanwhile_is_waited_for(
    which: str, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    free = [300 << 20]

    def free_bytes(folder: Path) -> int:
        return free[0] if folder.is_relative_to(world.home) == (which == "graphs") else 50 << 30

    monkeypatch.setattr(failures, "free_bytes", free_bytes)
    monkeypatch.setattr(failures, "total_bytes", lambda folder: 100 << 30)
    world.ends = CompileError("g++ found no room.", lasting=False, cause="disk")
    assert isinstance(world.refused(), CompileFailed)
    for _ in range(3):
        assert world.refused() == WaitsForDisk(CompileFailed("g++ found no room."), 556 << 20)
    assert world.compiles == 1
    free[0] = 600 << 20
    assert isinstance(world.refused(), CompileFailed) and world.compiles == 2


def test_what_cannot_be_saved_is_tried_a_day_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    unable(monkeypatch, errno.EIO)
    assert isinstance(world.refused(), NotSaved)
    for _ in range(3):
        assert isinstance(world.refused(), reasons.WaitsForFolder)
    assert world.compiles == 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 7 * 24 * 3600)  # a clock that was turned back keeps nothing waiting
    assert isinstance(world.refused(), NotSaved) and world.compiles == 2
    monkeypatch.setattr(time, "time", lambda: now - 5 * 24 * 3600)
    assert isinstance(world.refused(), NotSaved) and world.compiles == 3


def test_another_folder_is_tried_at_once(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unable(monkeypatch, errno.EIO)
    world.refused()
    shutil.copytree(world.home, tmp_path / "other")
    world.home = tmp_path / "other"
    assert isinstance(world.refused(), NotSaved) and world.compiles == 2


# Wrong graphs ---------------------------------------------------------------------------------------------------


def test_a_graph_that_was_wrong_is_not_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "error", 1.0)
    result = world.call(world.obtain())
    assert isinstance(result, Result) and isinstance(result.refusal, reasons.FirstUseFailed)
    for _ in range(3):
        why = world.refused()
        assert isinstance(why, WaitsForChange) and why.because == result.refusal
    assert world.compiles == 1
    world.request = dataclasses.replace(world.request, source=OTHER)  # the graph may be right with its weights
    assert isinstance(world.obtain(), LoadedGraph) and world.compiles == 2


def test_what_works_for_one_model_stays_wrong_elsewhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "error", 1.0)
    world.call(world.obtain())
    monkeypatch.setattr(Runner, "error", 0.0)
    mine = world.request
    world.request = dataclasses.replace(mine, source=OTHER)
    assert isinstance(world.call(world.obtain()), Result)
    theirs, world.request = world.request, mine
    monkeypatch.setattr(Runner, "error", 1.0)
    result = world.call(world.obtain())  # what the other model's first use showed says nothing for this one
    assert isinstance(result, Result) and isinstance(result.refusal, reasons.FirstUseFailed)
    monkeypatch.setattr(Runner, "error", 0.0)
    world.request = theirs
    assert isinstance(world.obtain(), LoadedGraph)
    quarantine(Store(world.home), next(Store(world.home).entries()).folder)
    world.request = mine
    assert isinstance(world.refused(), WaitsForChange)


def test_a_graph_of_an_older_version_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(compiles, "__version__", "0.0.1")
        patch.setattr(Runner, "error", 1.0)
        world.call(world.obtain())
    assert isinstance(world.obtain(), LoadedGraph) and world.compiles == 2


def test_a_later_difference_may_be_an_accident(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for compiled in (1, 2, 2):
        found = world.obtain()
        assert world.compiles == compiled
        if isinstance(found, LoadedGraph):
            found._retire(SimpleNamespace(reason=reasons.SpotCheckFailed(reasons.NotFinite()), reference=None))  # type: ignore[arg-type]
    assert isinstance(found, Refused) and isinstance(found.reason, WaitsForChange)


def test_a_graph_that_is_not_loaded_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(InductorBackend, "load", mock.Mock(side_effect=LoadError("no handle")))
        for _ in range(3):
            assert world.refused() == reasons.LoadFailed("no handle")
    assert isinstance(world.obtain(), LoadedGraph) and world.compiles == 1


def test_a_damaged_graph_is_copied_anew_from_beside_the_checkpoint(world: World, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "photo.safetensors").touch()
    source = ModelSource(models / "photo.safetensors", "0123456789ab")
    world.request = dataclasses.replace(world.request, source=source)
    graph = world.obtain()
    assert isinstance(graph, LoadedGraph) and graph.entry.folder.is_relative_to(world.home)
    (graph.entry.folder / "graph.aoti").write_bytes(b"edoc")
    assert isinstance(world.refused(), reasons.CompiledAgainLater)
    again = world.obtain()
    assert isinstance(again, LoadedGraph) and world.compiles == 1


@pytest.mark.parametrize("by", ["first use", "crash"])
def test_a_wrong_graph_is_not_copied_again_from_beside_the_checkpoint(
    by: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "a.safetensors").touch()
    world.request = dataclasses.replace(world.request, source=ModelSource(models / "a.safetensors", "0123456789ab"))
    with monkeypatch.context() as patch:
        patch.setattr(compiles, "__version__", "0.0.1")  # made by an older version
        first = world.obtain()
    assert isinstance(first, LoadedGraph)
    if by == "crash":
        die_while_loading(Store(world.home), first.entry)
        monkeypatch.setattr(
            child_load_test, "compile_in_child", mock.Mock(side_effect=ChildDiedError("SIGSEGV", lasting=False))
        )
        assert isinstance(world.refused(), reasons.CompiledAgainLater)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(Runner, "error", 1.0)
            assert isinstance(world.call(world.obtain()), Result)
    (copy,) = models.glob("a.graphs/*/toy/*/graph.aoti")
    copy.write_bytes(b"code")  # as a graph that others compiled before
    for _ in range(2):
        assert isinstance(world.obtain(), LoadedGraph)
    assert world.compiles == 2


# Keys that are gone -----------------------------------------------------------------------------------------------


def test_a_graph_of_a_lost_key_is_told_of(world: World, tmp_path: Path) -> None:
    """Whether the run waits for the compile or goes on uncompiled meanwhile."""
    assert isinstance(world.obtain(), LoadedGraph) and world.compiles == 1
    for when, compiled in (("background", 2), ("wait", 3)):
        (world.home / "signing.key").unlink()
        engine = world.process()
        found = engine.obtain(world.request, when, lambda progress: None)  # type: ignore[arg-type]
        if isinstance(found, LoadedGraph):
            assert found.instead_of == reasons.WrongSignature()
        else:
            assert found.reason == reasons.CompilesInBackground(reasons.WrongSignature())
            for thread, _ in engine.compiles._background.values():
                thread.join()
        assert world.compiles == compiled
    again = world.obtain()
    assert isinstance(again, LoadedGraph) and again.instead_of is None and world.compiles == 3


def test_a_disk_that_takes_no_more_files(world: World, tmp_path: Path) -> None:
    """It has room for bytes, which more free bytes would not change: eager, in one line that says what helps."""
    (tmp_path / "home").mkdir()
    with disk(tmp_path / "home", 64 << 20, "nr_inodes=24") as home:
        for number in range(24):
            with contextlib.suppress(OSError):
                (home / f"filler-{number}").touch()
        reason = world.refused()
        assert isinstance(reason, NotSaved) and reason.fault == "files"
        assert "takes no more of them" in reason.text
        for path in home.glob("filler-*"):
            path.unlink()
        assert isinstance(world.obtain(), LoadedGraph)


@pytest.mark.parametrize("where", ["find", "take", "staging", "publish"])
def test_no_memory_is_a_reason_and_no_error(where: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Store, where, fail)
        assert world.refused() == reasons.SystemMemoryShort()
    assert isinstance(world.obtain(), LoadedGraph)


def test_a_loaded_graph_is_not_removed_until_it_is_closed(world: World) -> None:
    process = world.process()
    graph = world.obtain(process)
    assert isinstance(graph, LoadedGraph)
    other = Store(world.home)
    assert [one.in_use for one in other.disk.entries()] == [True]
    assert other.disk.prune(over(1)).removed == ()
    second = world.process()
    assert isinstance(world.obtain(second), LoadedGraph) and [one.uses for one in other.disk.entries()] == [1]
    process.close()
    assert other.disk.prune(over(1)).removed == ()
    second.close()
    assert len(other.disk.prune(over(1)).removed) == 1
    assert isinstance(world.obtain(), LoadedGraph) and world.compiles == 2


def test_a_graph_that_goes_between_look_up_and_load_is_compiled_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.process()
    assert isinstance(world.obtain(first), LoadedGraph)
    first.close()
    process = world.process()
    find = process.store.find

    def find_then_go(*args: Any) -> Any:
        judged = find(*args)
        Store(world.home).disk.prune(over(1))
        return judged

    monkeypatch.setattr(process.store, "find", find_then_go)
    never = process.obtain(world.request, "eager", lambda progress: None)
    assert never == Refused(reasons.GraphRemoved())
    assert isinstance(world.obtain(process), LoadedGraph) and world.compiles == 2
