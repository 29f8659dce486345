"""Processes that share a compile: every job is done once, also when one of them dies over it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from onegraph.compiler import worker
from onegraph.compiler.crew import Crew

DONE: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


def jobs(folder: Path, *names: str):
    def job(name: str):
        def do() -> None:
            DONE[name] += 1
            (folder / name).write_text("done")

        return do

    return {name: job(name) for name in names}


def test_alone_it_does_everything(tmp_path: Path) -> None:
    Crew(tmp_path).work(jobs(tmp_path, "a", "b", "c"))
    assert DONE == {"a": 1, "b": 1, "c": 1}


def test_what_a_helper_took_and_did_is_not_done_again(tmp_path: Path) -> None:
    work = jobs(tmp_path, "a", "b", "c")
    helper = Crew(tmp_path, leads=False)
    helper.work({name: work[name] for name in ("a", "b")})
    Crew(tmp_path).work(work)
    assert DONE == {"a": 1, "b": 1, "c": 1}


def test_the_leader_waits_for_a_helper_that_is_at_work(tmp_path: Path) -> None:
    code = f"import time, pathlib; time.sleep(1); pathlib.Path({str(tmp_path / 'a')!r}).write_text('by the helper')"
    (tmp_path / "a.taken").touch()
    helper = subprocess.Popen([sys.executable, "-c", code])
    Crew(tmp_path, [helper]).work(jobs(tmp_path, "a", "b"))
    assert (tmp_path / "a").read_text() == "by the helper"
    assert DONE == {"b": 1}


def test_the_leader_does_what_a_helper_died_over(tmp_path: Path) -> None:
    (tmp_path / "a.taken").touch()
    helper = subprocess.Popen([sys.executable, "-c", "raise SystemExit(9)"])
    Crew(tmp_path, [helper]).work(jobs(tmp_path, "a", "b"))
    assert DONE == {"a": 1, "b": 1}


def test_a_helper_leaves_what_others_took(tmp_path: Path) -> None:
    (tmp_path / "a.taken").touch()
    Crew(tmp_path, leads=False).work(jobs(tmp_path, "a", "b"))
    assert DONE == {"b": 1}


def test_where_the_system_starts_no_more_processes_there_are_fewer_helpers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = []

    def popen(*args: object, **kwargs: object) -> object:
        if len(started) == 2:
            raise OSError("out of processes")
        started.append(args)
        return object()

    monkeypatch.setattr(worker.subprocess, "Popen", popen)
    assert len(worker._start_helpers(tmp_path, 3)) == 2
