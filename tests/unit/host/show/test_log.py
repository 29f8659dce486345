"""What the log has of runs: what changed, once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from onegraph.common import reasons
from onegraph.common.reasons import Reason
from onegraph.host.show import progress, results, status
from onegraph.runtime.calls.run_report import RunReport


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    stores = (status._nodes, status.last_runs, results._results, results._lists, progress.texts)
    for store in stores:
        store.clear()
    with caplog.at_level(logging.INFO, "onegraph"):
        yield caplog
    for store in stores:
        store.clear()


def run(*why: Reason, compiled: int = 0, part: str = "", compile_s: float | None = None) -> None:
    report = RunReport(label="any size", compiled_calls=compiled, compile_s=compile_s)
    report.eager.update(dict.fromkeys(why, 3))
    progress.report_run("5", part, report)


def told(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(line.levelname, line.getMessage()) for line in log.records]


def test_an_unchanged_result_is_told_once(log: pytest.LogCaptureFixture) -> None:
    for _ in range(19):
        run(compiled=3)
        run(compiled=1, part="decoder")
    assert told(log) == [
        ("INFO", "OneGraph: node 5: compiled, any size"),
        ("INFO", "OneGraph: node 5: decoder: compiled, any size"),
    ]


def test_each_change_is_told(log: pytest.LogCaptureFixture) -> None:
    for why in (reasons.NoGraph(), reasons.NoGraph("sizes"), reasons.CompilesInBackground()):
        run(why)
    run(compiled=3)
    run(compiled=3, compile_s=40.0)  # another size, exact
    run(reasons.NoGraph(), compiled=2)
    run(compiled=3)
    assert [(level, text.split(": ", 2)[2].split(" ")[0].strip(",:")) for level, text in told(log)] == [
        ("INFO", "uncompiled"), ("INFO", "uncompiled"), ("INFO", "compiled"), ("INFO", "compiled"), ("INFO", "2"),
        ("INFO", "compiled"),
    ]  # fmt: skip


def test_another_failure_of_the_same_code_is_told(log: pytest.LogCaptureFixture) -> None:
    for why in ("no space", "no space", "no compiler", "no compiler"):
        run(reasons.CompileFailed(why))
    (first_level, first), (second_level, second) = told(log)
    assert (first_level, second_level) == ("WARNING", "WARNING")
    assert "no space" in first and "no compiler" in second


def test_only_what_has_to_be_mended_is_a_warning(log: pytest.LogCaptureFixture) -> None:
    for why in (reasons.NoGraph(), reasons.PatchedBy("FreeU_V2", "output blocks"), reasons.CompileFailed("no space")):
        run(why)
    assert [level for level, _ in told(log)] == ["INFO", "INFO", "WARNING"]
