"""Processes that share a compile: every task is done once, also when one of them dies over it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from onegraph.backends.worker_pool import WorkerPool
from onegraph.compiler.process import worker

DONE: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


def tasks(folder: Path, *names: str):
    def task(name: str):
        def do() -> None:
            DONE[name] += 1
            (folder / name).write_text("done")

        return do

    return {name: task(name) for name in names}


def test_alone_it_does_everything(tmp_path: Path) -> None:
    WorkerPool(tmp_path).run(tasks(tmp_path, "a", "b", "c"))
    assert DONE == {"a": 1, "b": 1, "c": 1}


def test_what_a_worker_took_and_did_is_not_done_again(tmp_path: Path) -> None:
    work = tasks(tmp_path, "a", "b", "c")
    other = WorkerPool(tmp_path, is_main=False)
    other.run({name: work[name] for name in ("a", "b")})
    WorkerPool(tmp_path).run(work)
    assert DONE == {"a": 1, "b": 1, "c": 1}


def test_the_main_worker_waits_for_one_that_is_at_work(tmp_path: Path) -> None:
    code = f"import time, pathlib; time.sleep(1); pathlib.Path({str(tmp_path / 'a')!r}).write_text('by the other')"
    (tmp_path / "a.taken").touch()
    other = subprocess.Popen([sys.executable, "-c", code])
    WorkerPool(tmp_path, [other]).run(tasks(tmp_path, "a", "b"))
    assert (tmp_path / "a").read_text() == "by the other"
    assert DONE == {"b": 1}


def test_the_main_worker_does_what_another_died_over(tmp_path: Path) -> None:
    (tmp_path / "a.taken").touch()
    other = subprocess.Popen([sys.executable, "-c", "raise SystemExit(9)"])
    WorkerPool(tmp_path, [other]).run(tasks(tmp_path, "a", "b"))
    assert DONE == {"a": 1, "b": 1}


def test_a_worker_leaves_what_others_took(tmp_path: Path) -> None:
    (tmp_path / "a.taken").touch()
    WorkerPool(tmp_path, is_main=False).run(tasks(tmp_path, "a", "b"))
    assert DONE == {"b": 1}


def by_process(folder: Path, *names: str, seconds: float = 0.3, deadly: bool = False):
    """Tasks that write which process did them; copies of this process do not survive deadly ones."""
    main = os.getpid()

    def task(name: str):
        def do() -> None:
            time.sleep(seconds)
            if deadly and os.getpid() != main:
                os._exit(9)
            with (folder / "log").open("a") as log:
                log.write(f"{name} {os.getpid()}\n")
            (folder / name).write_text("done")

        return do

    return {name: task(name) for name in names}


def done_by(folder: Path) -> dict[str, int]:
    lines = [line.split() for line in (folder / "log").read_text().splitlines()]
    assert len({name for name, _ in lines}) == len(lines), lines  # once each
    return {name: int(process) for name, process in lines}


def test_a_copy_of_the_process_does_its_share(tmp_path: Path) -> None:
    called = tmp_path / "called"
    WorkerPool(tmp_path, copies=1, in_copy=called.touch).run(by_process(tmp_path, "a", "b", "c", "d"))
    found = done_by(tmp_path)
    assert set(found) == {"a", "b", "c", "d"}
    assert len(set(found.values())) == 2
    assert called.exists()


def test_there_are_never_more_copies_than_tasks(tmp_path: Path) -> None:
    WorkerPool(tmp_path, copies=3).run(by_process(tmp_path, "a"))
    assert done_by(tmp_path) == {"a": os.getpid()}


def test_the_main_worker_does_what_a_copy_died_over(tmp_path: Path) -> None:
    WorkerPool(tmp_path, copies=1).run(by_process(tmp_path, "a", "b", deadly=True))
    assert done_by(tmp_path) == {"a": os.getpid(), "b": os.getpid()}


def test_an_error_in_a_copy_raises_in_the_main_worker(tmp_path: Path) -> None:
    def fails() -> None:
        raise ValueError("no")

    tasks = {**by_process(tmp_path, "a"), "b": fails}
    with pytest.raises(ValueError, match="no"):
        WorkerPool(tmp_path, copies=1).run(tasks)


def test_where_no_more_processes_start_there_are_fewer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = []

    def popen(*args: object, **kwargs: object) -> object:
        if len(started) == 2:
            raise OSError("out of processes")
        started.append(args)
        return object()

    monkeypatch.setattr(worker.subprocess, "Popen", popen)
    assert len(worker.start_workers(tmp_path, 3)) == 2
