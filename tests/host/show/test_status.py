"""What headless clients read while the prompt's thread writes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from onegraph.common.reasons import PatchedBy
from onegraph.host.page import routes
from onegraph.host.show import progress, status
from onegraph.runtime.calls.run_report import RunReport
from onegraph.runtime.obtain.registry import Registry


@pytest.fixture(autouse=True)
def _often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    status.last_runs.clear()
    progress.texts.clear()


def test_the_status_is_readable_while_runs_end(fresh_process: Registry) -> None:
    stop = threading.Event()

    def prompts() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            report = RunReport()
            report.eager[PatchedBy("pack", str(number))] += 1
            status.last_runs[f"node {number}"] = report
            progress.texts[f"node {number}"] = "text"
            fresh_process.counters.reasons[PatchedBy("pack", str(number))] += 1
            fresh_process.compiles._background[str(number), "cpu"] = (threading.current_thread(), 0.0)
            if number % 500 == 0:
                for filled in (status.last_runs, progress.texts, fresh_process.counters.reasons):
                    filled.clear()
                fresh_process.compiles._background.clear()

    thread = threading.Thread(target=prompts)
    thread.start()
    try:
        for _ in range(300):
            found = routes.status()
            assert found["background_compiles"] >= 0
    finally:
        stop.set()
        thread.join()
