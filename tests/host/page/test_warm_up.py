"""Graphs of a list, restored when the server starts: no model is read, and the first run finds them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headless import host

from onegraph.host.page import process, routes, warm_up
from onegraph.host.page.answers import WithStatus
from onegraph.host.page.models import NoFields, Readiness
from onegraph.host.page.warm_up import VARIABLE, WarmUp
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.obtain.registry import Registry

from ..conftest import compiled

Start = Callable[[str], WarmUp]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a server with a list, and waits until it is done with it."""

    def begin(text: str) -> WarmUp:
        (tmp_path / "list.txt").write_text(text)
        monkeypatch.setenv(VARIABLE, str(tmp_path / "list.txt"))
        made = WarmUp()
        monkeypatch.setattr(process, "warm_up", made)
        made.start()
        for thread in threading.enumerate():
            if thread.name == "onegraph-warm-up":
                thread.join()
        return made

    return begin


def answer() -> tuple[int, Readiness]:
    found = process.ready(NoFields())
    return (found.status, found.body) if isinstance(found, WithStatus) else (200, found)  # type: ignore[return-value]


@pytest.mark.usefixtures("compiled_once")
def test_a_run_finds_what_the_list_names(
    start: Start, checkpoint: Callable[..., Path], model: Any, counters: Counters, fresh_process: Registry
) -> None:
    start(f"# models\n\n  {checkpoint().name}  \n{checkpoint().stem}\n")
    assert answer() == (200, Readiness(ready=True, waiting_for=[]))
    assert counters.restores == counters.preloads == len(fresh_process.graphs()) >= 1
    before = counters.restores
    assert relative_l2(host.sample(compiled(model)), host.sample(model)) < 1e-4
    assert (counters.restores, counters.compiles, counters.eager_calls) == (before, 0, 0)


@pytest.mark.usefixtures("compiled_once")
def test_what_cannot_be_restored_is_waited_for(
    start: Start, checkpoint: Callable[..., Path], fresh_process: Registry
) -> None:
    start(f"nobody.safetensors\n{checkpoint().name}\n../../etc/passwd\n*\n")
    assert answer() == (503, Readiness(ready=False, waiting_for=["nobody.safetensors", "../../etc/passwd", "*"]))
    assert len(fresh_process.graphs()) >= 1


@pytest.mark.usefixtures("fresh_process")
def test_a_list_that_is_not_there_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/list.txt")
    made = WarmUp()
    monkeypatch.setattr(process, "warm_up", made)
    made.start()
    status, told = answer()
    assert (status, told.ready, len(told.waiting_for)) == (503, False, 1)
    assert "/nowhere" not in str(told)


def test_without_a_list_it_is_ready_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    made = WarmUp()
    monkeypatch.setattr(process, "warm_up", made)
    made.start()
    assert answer() == (200, Readiness(ready=True, waiting_for=[]))


@pytest.mark.usefixtures("compiled_once")
def test_what_fails_ends_no_server(
    start: Start, checkpoint: Callable[..., Path], fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(warm_up, "requests_of", fail)
    start(checkpoint().name)
    assert answer()[0] == 503
    assert routes.status()["restores"] == 0
