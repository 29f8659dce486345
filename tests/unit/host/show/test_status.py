"""What a node shows of the runs of one prompt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onegraph.common.reasons import CompileFailed
from onegraph.host.show import status
from onegraph.runtime.calls.run_report import RunReport

NODE = "5"


class Prompt:
    """The prompt that ComfyUI executes."""

    id: str | None = "first"


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Prompt]:
    running = Prompt()
    monkeypatch.setattr(status, "current_prompt", lambda: running.id)
    status._nodes.clear()
    yield running
    status._nodes.clear()


def eager(reason: str) -> RunReport:
    report = RunReport()
    report.eager[CompileFailed(reason)] += 1
    return report


def test_a_run_takes_the_place_of_the_introduction(prompt: Prompt) -> None:
    assert status.intro(NODE, {"": "ready"}) == "ready"
    assert status.added(NODE, "", eager("why")) == "uncompiled: why"
    assert status.intro("6", {"": "ready"}) == "ready"
    assert status.added("6", "encoder", eager("why")) == "encoder: uncompiled: why"


def test_load_checkpoint_shows_model_and_vae(prompt: Prompt) -> None:
    assert status.intro(NODE, {"model": "ready", "VAE": "later"}) == "model: ready\nVAE: later"
    assert status.added(NODE, "encoder", eager("a")) == "model: ready\nencoder: uncompiled: a"
    assert status.added(NODE, "", eager("b")) == "model: uncompiled: b\nencoder: uncompiled: a"
    assert (
        status.added(NODE, "decoder", eager("c"))
        == "model: uncompiled: b\ndecoder: uncompiled: c\nencoder: uncompiled: a"
    )


def test_all_runs_of_a_prompt_show_and_equal_ones_once(prompt: Prompt) -> None:
    for reason in ("a", "b", "a", "a"):
        text = status.added(NODE, "", eager(reason))
    assert text == "uncompiled: a (3 runs)\nuncompiled: b"
    assert [run["text"] for run in status.all_runs()[NODE]] == [
        "uncompiled: a",
        "uncompiled: b",
        "uncompiled: a",
        "uncompiled: a",
    ]
    assert {run["part"] for run in status.all_runs()[NODE]} == {""}


def test_a_new_prompt_starts_a_cached_node_afresh(prompt: Prompt) -> None:
    status.intro(NODE, {"model": "ready", "VAE": "later"})
    status.added(NODE, "", eager("a"))
    status.added(NODE, "decoder", eager("a"))
    prompt.id = "second"
    assert status.added(NODE, "", eager("b")) == "model: uncompiled: b\nVAE: later"
    assert len(status.all_runs()[NODE]) == 1


def test_without_a_server_each_run_stands_alone(prompt: Prompt) -> None:
    prompt.id = None
    status.added(NODE, "", eager("a"))
    assert status.added(NODE, "", eager("b")) == "uncompiled: b"


def test_progress_shows_below_the_runs_until_the_next(prompt: Prompt) -> None:
    status.intro(NODE, {"model": "ready", "VAE": "later"})
    assert status.with_progress(NODE, "compiling: 1 s") == "compiling: 1 s"
    status.added(NODE, "", eager("a"))
    assert status.with_progress(NODE, "compiling: 2 s") == "model: uncompiled: a\nVAE: later\ncompiling: 2 s"
    assert status.added(NODE, "decoder", eager("b")) == "model: uncompiled: a\ndecoder: uncompiled: b"


def test_the_first_and_last_of_many_runs_are_shown(prompt: Prompt) -> None:
    for number in range(300):
        text = status.added(NODE, "decoder", eager(str(number)))
    assert text.splitlines() == [
        "decoder: uncompiled: 0",
        "decoder: (295 more runs)",
        *(f"decoder: uncompiled: {n}" for n in (296, 297, 298, 299)),
    ]
    assert len(status.all_runs()[NODE]) == status.MOST_RUNS


def test_texts_of_nodes_long_gone_are_forgotten(prompt: Prompt) -> None:
    for number in range(status.MOST_NODES + 10):
        status.added(str(number), "", eager("a"))
    assert len(status.all_runs()) == status.MOST_NODES
