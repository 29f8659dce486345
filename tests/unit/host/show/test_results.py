"""What programs read of prompts: bounded, and in the list that a node returned."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from onegraph.common import reasons
from onegraph.host.show import progress, results, status
from onegraph.runtime.calls.run_report import RunReport

NODE = "5"


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    running = SimpleNamespace(id="first")
    monkeypatch.setattr(status, "current_prompt", lambda: running.id)
    stores = (status._nodes, results._results, results._lists, progress.texts)
    for store in stores:
        store.clear()
    yield running
    for store in stores:
        store.clear()


def test_a_run_is_in_the_list_that_its_node_returned(prompt: SimpleNamespace) -> None:
    ui = progress.show_intro(NODE, text="ready")
    assert ui is not None
    ((listed,),) = ui.values()
    assert [(one["state"], one["text"]) for one in listed] == [("not_run", "ready")]
    progress.report_run(NODE, "", RunReport(compiled_calls=3, label="any size", speedup=1.5))
    assert [(one["state"], one["calls"], one["speedup"]) for one in listed] == [("compiled", 3, 1.5)]
    prompt.id = "second"
    report = RunReport(compiled_calls=1)
    report.eager[reasons.CompileFailed("no room in /home/user/graphs")] += 2
    progress.report_run(NODE, "", report)
    assert [one["prompt_id"] for one in listed] == ["first", "second"]
    second = listed[-1]
    assert (second["state"], second["calls"], second["compiled_calls"], second["eager_calls"]) == ("partly", 3, 1, 2)
    assert [(why["code"], why["calls"]) for why in second["reasons"]] == [("compile_failed", 2)]
    assert "/home" not in str(second)
    assert results.of_prompt("second") == {NODE: second}


def test_a_model_that_is_not_compiled_says_why(prompt: SimpleNamespace) -> None:
    progress.show_intro(NODE, text=status.EagerText(reasons.NothingCompiled()))
    ((listed,),) = (results.ui(NODE) or {}).values()
    assert [(one["state"], [why["code"] for why in one["reasons"]]) for one in listed] == [
        ("eager", [reasons.NothingCompiled().code])
    ]


def test_memory_is_bounded(prompt: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_RESULTS", 20)
    for number in range(30):
        prompt.id = f"prompt {number}"
        progress.report_run(NODE, "", RunReport(compiled_calls=1))
    assert len(results._results) == 20 and results.of_prompt("prompt 9") == {}
    ((listed,),) = (results.ui(NODE) or {}).values()
    assert [one["prompt_id"] for one in listed] == [f"prompt {number}" for number in range(20, 30)]
    for number in range(status.MOST_NODES + 5):
        results.note(f"node {number}", "")
        progress.show_intro(f"node {number}", text="ready")
    assert len(results._lists) == status.MOST_NODES


def test_without_a_server_there_is_no_result(prompt: SimpleNamespace) -> None:
    prompt.id = None
    assert progress.show_intro(NODE, text="ready") is None
    assert progress.show_intro(None, text="ready") is None
