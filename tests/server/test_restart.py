"""A new process on the same base directory: the graph is restored, and what goes wrong costs only the speed."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil
import pytest
from headless import server, workflows
from headless.standstill import wait_until
from support.processes import priority
from support.processes.listener import listening

from .conftest import HAS_ONEFLOW, SECOND, difference, graph_folders, needs_oneflow, node_of, txt2img


def worker_of(running: server.Server) -> psutil.Process | None:
    """The compiling process of a server."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(running.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(part.endswith("worker.py") for part in child.cmdline()):
                    return child
    return None


def when_compiling(running: server.Server, action) -> threading.Thread:
    """Call `action(worker)` once, a moment after the server has started a compiling process."""

    def watch() -> None:
        wait_until(lambda: worker_of(running))
        time.sleep(0.5)  # OneFlow needs no more than two seconds in all
        worker = worker_of(running)
        assert worker is not None
        action(worker)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.fixture(scope="module")
def reference(running: server.Server) -> server.Outcome:
    return running.run(workflows.without_onegraph(txt2img(seed=31)))


def test_the_graph_is_restored_without_compiling(
    running: server.Server, reference: server.Outcome, backend: str
) -> None:
    before = running.status()
    result = running.run(txt2img(seed=31, backend=backend))
    assert difference(reference, result) <= 2
    assert result.text("2").startswith("restored in ")
    status = running.status()
    assert (status["compiles"], status["restores"] - before["restores"], status["eager_calls"]) == (0, 1, 0)
    assert status["runs"]["2"]["restore_s"] > 0


def test_a_second_checkpoint_needs_no_compile(running: server.Server) -> None:
    prompt = txt2img(seed=32, checkpoint=SECOND)
    assert difference(running.run(workflows.without_onegraph(prompt)), running.run(prompt)) <= 2
    assert running.status()["compiles"] == 0


def test_a_node_under_another_id_shows_its_own_text(running: server.Server) -> None:
    """ComfyUI caches results by inputs; a cached one must not go on talking to the node it was made for."""
    prompt = txt2img(seed=51)
    running.run(prompt)
    prompt["77"] = prompt.pop(node_of(prompt))
    for node in prompt.values():
        node["inputs"] = {k: ["77", 0] if v == ["2", 0] else v for k, v in node["inputs"].items()}
    result = running.run(workflows.with_inputs(prompt, "KSampler", seed=52))
    assert result.text("77").startswith("compiled, any size")
    assert result.text("2") == ""


def test_after_a_killed_compile_the_item_runs_eager(running: server.Server, base: Path, backend: str) -> None:
    running.run(txt2img(seed=34))  # compiled: a result is logged where it differs from the one before
    before = graph_folders(base)
    killed_before = len([line for line in running.log.read_text().splitlines() if "was killed" in line])
    prompt = txt2img(seed=33, width=72, shapes="exact", backend=backend)
    eager = running.run(workflows.without_onegraph(prompt))
    thread = when_compiling(running, lambda worker: worker.kill())
    result = running.run(prompt)
    thread.join()
    assert result.status == "success"
    assert difference(eager, result) == 0
    assert result.text(node_of(prompt)).startswith("uncompiled: The compiling process was killed (SIGKILL")
    lines = [line for line in running.log.read_text().splitlines() if "was killed" in line]
    assert len(lines) - killed_before == 1
    assert running.status()["compiles"] == 0
    assert graph_folders(base) == before


def test_an_interrupt_ends_a_compile(running: server.Server, base: Path) -> None:
    """Nothing is waited for: the compile's processes are gone, and what they were at is in no folder."""
    before = graph_folders(base)
    seen: list[psutil.Process] = []

    def press(worker: psutil.Process) -> None:
        seen.extend([worker, *worker.children(recursive=True)])
        running.post("/interrupt", {})

    thread = when_compiling(running, press)
    result = running.run(txt2img(seed=34, width=80, shapes="exact"))
    thread.join()
    assert result.status == "interrupted"
    assert not [p for p in seen if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert graph_folders(base) == before
    assert not list(base.glob("models/checkpoints/**/.staging-*"))
    # and the queue goes on
    assert running.run(txt2img(seed=35)).text("2").startswith("compiled, any size")


# A compile that gives way to all else takes many times as long beside other tests, unless it is a short one.
@pytest.mark.parametrize(
    "backend",
    [pytest.param("oneflow", marks=needs_oneflow), pytest.param("inductor", marks=[pytest.mark.full] * HAS_ONEFLOW)],
)
def test_background_runs_eager_now_and_compiled_later(backend: str, running: server.Server) -> None:
    compiles = running.status()["compiles"]
    prompt = txt2img(seed=36, width=88, shapes="exact", when_missing="background", backend=backend)
    eager = running.run(workflows.without_onegraph(prompt))
    with listening(running.port) as page:
        first = running.run(prompt)
        assert difference(eager, first) == 0
        assert first.text("2") == "uncompiled: compiling in the background; a later run uses the graph"
        priority.wait_for(lambda: not running.status()["background_compiles"], running.pid)
        page.wait("onegraph.graphs", lambda data: bool(data["revision"]))
        shown = ["compiling"]

        def is_told() -> bool:  # a moment after the graph is there
            shown[:] = [data["badge"]["state"] for data in page.of("onegraph.badge") if data["node"] == "2"]
            return shown[-1:] == ["eager"]

        wait_until(is_told)
    assert "compiling" in shown  # of the run that is over
    again = workflows.with_inputs(prompt, "KSampler", seed=37)
    later = running.run(again)
    assert later.text("2").startswith("restored in "), later.texts
    assert difference(running.run(workflows.without_onegraph(again)), later) <= 2
    assert running.status()["compiles"] - compiles == 1
