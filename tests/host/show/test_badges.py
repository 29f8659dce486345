"""The badge of a node: during a compile, after runs, and for what runs eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from headless import host

from onegraph.common import reasons
from onegraph.compiler.process.progress import Progress
from onegraph.host.calls import model_hook as hook
from onegraph.host.show import badges, events, progress, status
from onegraph.runtime.calls.run_report import BlockReport, RunReport

from ..conftest import NODE, compiled

ORIGIN, OTHER = status.Origin("one prompt", "one client"), status.Origin("another prompt", "another client")


def of(origin: status.Origin = ORIGIN) -> badges.Badge:
    badge = badges.of(NODE, origin)
    assert badge is not None
    return badge


def told() -> dict[status.Origin, badges.Badge | None]:
    """What a page that was just opened is told of the node."""
    return {status.Origin(one.prompt_id, one.client_id): one.badge for one in badges.all_badges() if one.node == NODE}


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(events, "send", lambda event, data: found.append((event, data)))
    monkeypatch.setattr(status, "current_origin", lambda: ORIGIN)
    status._nodes.clear()
    yield found
    status._nodes.clear()
    badges._compiles.clear()
    badges._sent.clear()
    progress.texts.clear()


def report(**changes: Any) -> RunReport:
    made = RunReport(compiled_calls=20)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def eager(made: RunReport, calls: int) -> RunReport:
    made.eager[reasons.PatchedBy("FreeU", "output")] += calls
    return made


def blocks(**changes: Any) -> BlockReport:
    made = BlockReport(of=10)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


SEVERAL = [report(compile_s=31.4), report(speedup=2.12), eager(report(), 3)]
CASES: dict[str, tuple[list[RunReport], tuple[str, str, float | None, int, int]]] = {
    "nothing yet": ([], ("waiting", "waiting", None, 0, 0)),
    "restored": ([report(restore_s=0.31)], ("restored", "restored 0.3 s", 0.31, 0, 20)),
    "with its speed": (
        [report(restore_s=0.31, speedup=2.123)],
        ("restored", "restored 0.3 s, 2.1x faster", 0.31, 0, 20),
    ),
    "compiled": ([report(compile_s=31.4)], ("compiled", "compiled 31 s", 31.4, 0, 20)),
    "loaded before": ([report(speedup=2.12)], ("compiled", "2.1x faster", None, 0, 20)),
    "eager": ([eager(report(compiled_calls=0), 20)], ("eager", "uncompiled", None, 20, 20)),
    "partly": ([eager(report(compiled_calls=17), 3)], ("partly", "3 of 20 calls uncompiled", None, 3, 20)),
    "several runs": (SEVERAL, ("partly", "3 of 63 calls uncompiled", 31.4, 3, 63)),
    "blocks": ([report(blocks=blocks(restore_s=0.5))], ("restored", "restored 0.5 s", 0.5, 0, 20)),
}


@pytest.mark.parametrize(("reports", "shown"), CASES.values(), ids=CASES)
def test_what_runs_leave_on_the_badge(
    reports: list[RunReport], shown: tuple[Any, ...], sent: list[tuple[str, dict[str, Any]]]
) -> None:
    progress.show_intro(NODE, text="ready")
    for one in reports:
        progress.report_run(NODE, "", one)
    badge = of()
    assert (badge.state, badge.text, badge.seconds, badge.eager_calls, badge.calls) == shown
    assert sum(why.calls for why in badge.reasons) == badge.eager_calls
    assert sent[-1] == (
        "onegraph.badge",
        {
            "node": NODE, "prompt_id": "one prompt", "client_id": "one client",
            "badge": badge.model_dump(mode="json"),
        },
    )  # fmt: skip
    assert told() == {ORIGIN: badge}


def test_blocks_that_ran_eager_are_counted_by_themselves() -> None:
    made = report(blocks=blocks())
    made.blocks.eager[reasons.PatchedBy("pack", "attn1_patch")] += 6
    progress.report_run(NODE, "", made)
    badge = of()
    assert (badge.state, badge.text, badge.eager_calls) == ("partly", "6 block calls uncompiled", 0)
    assert [(why.code, why.calls) for why in badge.reasons] == [("patched", 6)]


def states(sent: list[tuple[str, dict[str, Any]]]) -> list[tuple[str | None, str | None]]:
    """Of the badges that were sent: whose, and their states."""
    told = [data for event, data in sent if event == "onegraph.badge"]
    return [(data["client_id"], data["badge"] and data["badge"]["state"]) for data in told]


def test_a_compile_moves_and_ends(sent: list[tuple[str, dict[str, Any]]]) -> None:
    progress.show_intro(NODE, text="ready")
    badges.compiling(NODE, ORIGIN, Progress("compiling", 3.0, 0.4))
    badges.compiling(NODE, ORIGIN, Progress("compiling", 3.1, 0.41))  # too soon for another event
    badge = of()
    assert (badge.state, badge.text, badge.progress) == ("compiling", "compiling 41%", 0.41)
    badges.compiling(NODE, ORIGIN, None)
    badges.compiling(None, ORIGIN, Progress("compiling", 3.0, 0.4))  # of nobody's node
    assert states(sent) == [("one client", "waiting"), ("one client", "compiling"), ("one client", "waiting")]
    assert told() == {ORIGIN: of()}


def test_a_compile_in_the_background_is_of_the_prompt_that_asked_for_it(
    monkeypatch: pytest.MonkeyPatch, sent: list[tuple[str, dict[str, Any]]]
) -> None:
    """Another client's prompt runs meanwhile, whose node has the same id: neither has the other's badge or text."""
    badges.compiling(NODE, ORIGIN, Progress("compiling", 3.0, 0.4))
    monkeypatch.setattr(status, "current_origin", lambda: OTHER)
    progress.report_run(NODE, "", eager(report(compiled_calls=0), 3))
    assert told() == {OTHER: of(OTHER), ORIGIN: of()} and (of().calls, of().reasons) == (0, ())
    badges.compiling(NODE, ORIGIN, None)
    assert states(sent) == [("one client", "compiling"), ("another client", "eager"), ("one client", None)]
    assert told() == {OTHER: of(OTHER)} and badges.of(NODE, ORIGIN) is None
    (text,) = (data for event, data in sent if event == "onegraph.text")
    assert (text["prompt_id"], text["client_id"]) == ("another prompt", "another client")


@pytest.mark.parametrize("ended", [False, True])
def test_a_model_that_is_never_called_is_waited_for_as_long_as_its_prompt_runs(
    monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    monkeypatch.setattr(status, "has_ended", lambda prompt: ended and prompt == "one prompt")
    progress.show_intro(NODE, text="ready")
    assert of().state == of().text.replace(" ", "_") == ("not_run" if ended else "waiting")


def test_a_run_that_was_stopped_before_its_first_call_waits_for_nothing() -> None:
    progress.show_intro(NODE, text="ready")
    progress.report_run(NODE, "", RunReport())
    assert of().state == "not_run"


def test_speeds_of_blocks_are_not_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockReport, "speedup", 4.123)
    progress.report_run(NODE, "", report(blocks=blocks(restore_s=0.5)))
    badge = of()
    assert (badge.speedup, badge.blocks_speedup) == (None, 4.12)
    assert badge.text == "restored 0.5 s, blocks 4.1x faster at first use"


def test_a_badge_that_fails_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError("no badge")

    monkeypatch.setattr(status, "reports_of", fail)
    progress.report_run(NODE, "", report())
    badges.compiling(NODE, ORIGIN, Progress("compiling", 3.0, 0.4))


def test_a_node_that_takes_no_such_model_says_why() -> None:
    """No run of it is ever reported: what it said when it was executed is all there is."""
    import comfy.model_patcher

    holder = torch.nn.Module()
    holder.diffusion_model = torch.nn.Linear(2, 2)
    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(holder, load_device=cpu, offload_device=cpu)
    progress.show_intro(NODE, text=hook.compile_model(patcher, hook.ModelNodeOptions(backend="inductor"), NODE)[1])
    badge = of()
    assert (badge.state, badge.text, badge.calls, len(badge.reasons)) == ("eager", "uncompiled", 0, 1)
    assert badge.reasons[0].calls == 0 and badge.reasons[0].text in progress.texts[NODE]


@pytest.mark.usefixtures("compiled_once")
def test_a_sampling_of_a_real_model(model: Any, sent: list[tuple[str, dict[str, Any]]]) -> None:
    host.sample(compiled(model))
    badge = of()
    assert (badge.state, badge.eager_calls) == ("restored", 0) and badge.calls > 0
    assert [data["badge"]["calls"] for event, data in sent if event == "onegraph.badge"][-1] == badge.calls
