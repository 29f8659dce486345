"""A graph that could not be saved is not compiled again before clearly more of the disk is free."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from support.models import toy

from onegraph.common.errors import CompileError
from onegraph.common.reasons import CompileFailed, NotSaved, WaitsADay, WaitsForDisk
from onegraph.common.shapes import Refused
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime import compiles, disk
from onegraph.runtime.disk import DiskShortage
from onegraph.runtime.registry import Registry

MIB = 1 << 20
FULL = NotSaved("No space left on device", "full")


@pytest.mark.parametrize(
    ("before", "now", "tried"),
    [(0, 255, False), (0, 256, True), (10240, 12799, False), (10240, 12800, True), (10240, None, True)],
)
def test_another_try_needs_clearly_more(
    before: int, now: int | None, tried: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda folder: None if now is None else now * MIB)
    monkeypatch.setattr(disk, "total_bytes", lambda folder: 100_000 * MIB)
    refused = DiskShortage(FULL, tmp_path, before * MIB).again()
    assert (refused is None) == tried


def test_no_more_is_wanted_than_a_disk_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "total_bytes", lambda folder: 1000 * MIB)
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 700 * MIB)
    assert DiskShortage(FULL, tmp_path, 700 * MIB).again() == Refused(WaitsForDisk(FULL, 950 * MIB))
    assert DiskShortage(FULL, tmp_path, 900 * MIB).again() == Refused(WaitsADay(FULL))


def test_a_full_disk_costs_one_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: ModelSource) -> None:
    tries, free = [0], [100 * MIB]

    def compiled(*args: Any) -> None:
        tries[0] += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "free_bytes", lambda folder: free[0])
    monkeypatch.setattr(disk, "total_bytes", lambda folder: 100_000 * MIB)
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


def test_where_nothing_was_compiled_it_is_tried_again(tmp_path: Path, source: ModelSource) -> None:
    (tmp_path / "home").write_text("no folder")
    engine, request = Registry(Store(tmp_path / "home")), toy.request(toy.Toy(), source)
    for _ in range(2):
        refused = engine.obtain(request, "wait", lambda progress: None)
        assert isinstance(refused, Refused) and isinstance(refused.reason, NotSaved)
