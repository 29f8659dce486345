"""What headless clients read while the prompt's thread writes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from onegraph.host import progress, routes, serve
from onegraph.host.run_report import RunReport
from onegraph.runtime.engine import Engine


@pytest.fixture(autouse=True)
def _often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    serve.last_runs.clear()
    progress.said.clear()


def test_the_status_is_read_while_runs_end_and_compiles_begin(fresh_process: Engine) -> None:
    stop = threading.Event()

    def prompts() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            report = RunReport()
            report.eager[f"reason {number}"] += 1
            serve.last_runs[f"node {number}"] = report
            progress.said[f"node {number}"] = "text"
            fresh_process.counters.reasons[f"reason {number}"] += 1
            fresh_process._background[str(number), "cpu"] = (threading.current_thread(), 0.0)
            if number % 500 == 0:
                for filled in (serve.last_runs, progress.said, fresh_process.counters.reasons):
                    filled.clear()
                fresh_process._background.clear()

    thread = threading.Thread(target=prompts)
    thread.start()
    try:
        for _ in range(300):
            status = routes.status()
            assert status["background_compiles"] >= 0
    finally:
        stop.set()
        thread.join()
