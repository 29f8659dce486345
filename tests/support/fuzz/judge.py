"""Run a case without and with OneGraph's nodes in one server, and judge the result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headless import server, workflows

from ..scenes.bench import Bench, Ended
from ..scenes.judge import MOST_OF_255, apart, since
from ..scenes.kinds import KINDS
from ..scenes.workflow import Case, Ingredient, plain, prompt_of
from .cases import plainer, served

MOST_ATTEMPTS, MOST_SECONDS = 60, 420.0  # of shrinking one case
NO_REASON = "(no reason was given)"

# A LoRA as weak as rounding, and how much more than that a compiled run may move an image that reacts to it.
ROUNDING = (1e-7, 1e-6, 3e-6)
MARGIN = 3

Kind = Literal[
    "same", "discarded", "unsteady", "chaotic", "off", "error", "plain error", "eager", "unexplained", "ended"
]
FAILURES: tuple[Kind, ...] = ("off", "error", "plain error", "eager", "unexplained", "ended")


@dataclass(frozen=True)
class Verdict:
    """What came of a case.

    Attributes:
        kind: `same`; `discarded`: both runs raised the same error; `unsteady`: plain runs differ from each other;
            `chaotic`: so does a plain run with its weights changed by a rounding error, about as much;
            `off`: another image; `error`: in the queue, where the plain run has none; `plain error`: the other way
            round; `eager`: calls of a case that is served compiled ran eager, or none of its calls was seen;
            `unexplained`: eager calls without a reason; `ended`: the server ended or hung.
        difference: largest difference of the two images, of 255.
        compiled, eager: calls of the run with the nodes.
    """

    kind: Kind
    message: str = ""
    difference: int = 0
    compiled: int = 0
    eager: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    flat: bool = False
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.kind in FAILURES


def judge(bench: Bench, case: Case, spoil: Callable[[workflows.Prompt], workflows.Prompt] = lambda p: p) -> Verdict:
    """Run a case both ways and compare.

    Args:
        spoil: changes the prompt with the nodes; for tests of this module.
    """
    started = time.monotonic()
    try:
        verdict = _judge(bench, case, spoil)
    except Ended as error:
        bench.restart()
        verdict = {"kind": "ended", "message": str(error)}
    if leaves_traces(case):
        bench.free()
    return Verdict(**verdict, seconds=time.monotonic() - started)


def leaves_traces(case: Case) -> bool:
    """Whether a run changes modules that stay loaded after it."""
    return any(KINDS[i.kind].traces == "stays" for i in case.ingredients)


def _judge(bench: Bench, case: Case, spoil: Callable[[workflows.Prompt], workflows.Prompt]) -> dict[str, Any]:
    prompt = prompt_of(case)
    without, prompt = plain(prompt), spoil(prompt)
    if case.settings.order == "nodes first":
        before, result, after = _counted(bench, prompt)
        if leaves_traces(case):
            bench.free()
        reference = bench.run(without)
    else:
        reference = bench.run(without)
        if case.settings.order == "apart" or leaves_traces(case):
            bench.free()
        before, result, after = _counted(bench, prompt)
    compiled, eager = since(before, after)
    reasons = Counter(after["reasons"])
    reasons.subtract(before["reasons"])
    reasons = +reasons
    silent = eager - sum(reasons.values())
    if silent > 0:
        reasons[NO_REASON] = silent
    calls: dict[str, Any] = {"compiled": compiled, "eager": eager, "reasons": reasons}
    statuses = (reference.status == "success", result.status == "success")
    if statuses == (False, False) and reference.error == result.error:
        return {"kind": "discarded", "message": result.error, **calls}
    if not all(statuses):
        message = f"plainly: {reference.error or 'no error'}; with the nodes: {result.error or 'no error'}"
        return {"kind": "plain error" if statuses[1] else "error", "message": message, **calls}
    off = apart(reference, result)
    flat = all(int(image.max()) == int(image.min()) for image in reference.images)
    measured = {"difference": off, "flat": flat, **calls}
    if off > MOST_OF_255:
        bench.free()
        again = apart(reference, bench.run(without))
        if again > MOST_OF_255:
            return {"kind": "unsteady", "message": f"two plain runs differ by {again}", **measured}
        moved = _moves(bench, case, reference)
        if moved > MOST_OF_255 and off <= MARGIN * moved:
            message = f"off by {off}/255; weights changed by a rounding error move the plain image by {moved}/255"
            return {"kind": "chaotic", "message": message, **measured}
        return {"kind": "off", "message": f"off by {off}/255", **measured}
    if served(case) and (eager or not compiled):
        message = "; ".join(f"{count}x {reason}" for reason, count in reasons.items()) or "no call was seen"
        return {"kind": "eager", "message": message, **measured}
    if silent > 0:
        return {"kind": "unexplained", "message": f"{silent} eager calls without a reason", **measured}
    return {"kind": "same", **measured}


def _moves(bench: Bench, case: Case, reference: server.Outcome) -> int:
    """How far the plain image moves when the weights change by as little as rounding."""
    moved = []
    for strength in ROUNDING:
        if leaves_traces(case):
            bench.free()
        first = Ingredient("lora", {"number": 0, "strength": strength})
        result = bench.run(plain(prompt_of(replace(case, ingredients=(first, *case.ingredients)))))
        moved.append(apart(reference, result) if result.status == "success" else 0)
    return max(moved)


def _counted(bench: Bench, prompt: workflows.Prompt) -> tuple[dict[str, Any], server.Outcome, dict[str, Any]]:
    before = bench.status()
    result = bench.run(prompt)
    return before, result, bench.status()


def shrink(
    bench: Bench,
    case: Case,
    verdict: Verdict,
    spoil: Callable[[workflows.Prompt], workflows.Prompt] = lambda p: p,
) -> tuple[Case, Verdict] | None:
    """The plainest case found that fails in the same way; None when the case alone does not fail again.

    Each attempt starts with nothing loaded, so what only fails after other cases is told apart.
    """
    deadline = time.monotonic() + MOST_SECONDS

    def again(candidate: Case) -> Verdict | None:
        bench.free()
        try:
            found = judge(bench, candidate, spoil)
        except ValueError:
            return None  # ComfyUI does not take it
        return found if found.kind == verdict.kind else None

    confirmed = again(case)
    if confirmed is None:
        return None
    attempts, smaller = 0, True
    while smaller:
        smaller = False
        for candidate in plainer(case):
            attempts += 1
            if attempts > MOST_ATTEMPTS or time.monotonic() > deadline:
                return case, confirmed
            found = again(candidate)
            if found is not None:
                case, confirmed, smaller = candidate, found, True
                break
    return case, confirmed
