"""First-use results: one for each machine, in a file that may be damaged or cannot be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import quarantine

from onegraph.graph_cache import first_use_results
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.store import Store


def test_results_are_stored_per_machine(store: Store, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    store.remember(entry, FirstUse(checked={"n": 2e-6}, eager_ms=3.0, compiled_ms=2.0))
    assert store.first_use(entry).speedup == 1.5
    monkeypatch.setattr(first_use_results, "machine_id", lambda: "another")
    assert store.first_use(entry) == FirstUse()
    store.remember(entry, FirstUse(eager_ms=1.0))
    assert store.first_use(entry) == FirstUse(eager_ms=1.0)
    assert len(json.loads((entry.folder / "outcome.json").read_text())["machines"]) == 2


def test_a_file_is_written_as_it_was_read(store: Store, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use_results, "machine_id", lambda: "here")
    fields = {
        "checked": {"n": 2e-06},
        "eager_ms": 3.0,
        "compiled_ms": None,
        "slow_processes": 1,
        "environment": "ComfyUI 1",
        "driver": "",
        "size": "batch 2",
        "replays": {},
        "captured": None,
    }
    written = {"version": 1, "machines": {"here": fields}}
    (entry.folder / "outcome.json").write_text(json.dumps(written))
    result = store.first_use(entry)
    assert (result.checked, result.slow_processes, result.environment) == ({"n": 2e-6}, 1, "ComfyUI 1")
    store.remember(entry, result)
    assert json.loads((entry.folder / "outcome.json").read_text()) == written


def test_an_entry_that_is_gone_is_no_error(store: Store, entry: Entry) -> None:
    quarantine(store, entry.folder)
    store.remember(entry, FirstUse(eager_ms=1.0))
    assert not entry.folder.exists()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("make", [pipe, endless, huge])
def test_what_is_no_result_is_replaced(make: Callable[[Path], None], store: Store, entry: Entry) -> None:
    make(entry.folder / "outcome.json")
    assert store.first_use(entry) == FirstUse()
    store.remember(entry, FirstUse(eager_ms=1.0))
    assert store.first_use(entry) == FirstUse(eager_ms=1.0)


def test_results_unreadable_now_are_kept(store: Store, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    store.remember(entry, FirstUse(eager_ms=1.0))

    def fails(path: Path, most: int) -> bytes:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(first_use_results, "read_regular", fails)
        assert store.first_use(entry) == FirstUse()
        store.remember(entry, FirstUse(eager_ms=2.0))
    assert store.first_use(entry) == FirstUse(eager_ms=1.0)
