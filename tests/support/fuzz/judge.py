"""Run a case without and with OneGraph's nodes in one server, and judge the result."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import websocket
from headless import server, workflows

from .cases import plainer, served
from .ingredients import KINDS
from .workflow import Case, Ingredient, plain, prompt_of

TOLERANCE = 2  # of 255
MOST_ATTEMPTS, MOST_SECONDS = 60, 420.0  # of shrinking one case
_SETTLES = 0.4  # seconds until ComfyUI's worker has seen what POST /free asked for
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


class Ended(RuntimeError):
    """The server ended, or does not answer any more."""


class Bench:
    """A server that is started again when a case takes it down."""

    def __init__(self, base: Path, comfyui: Path, env: Mapping[str, str]) -> None:
        self._start = lambda: server.running(base, comfyui, env=env)
        self._stack = contextlib.ExitStack()
        self.starts = 0
        self.server = self._started()

    def _started(self) -> server.Server:
        self.starts += 1
        return self._stack.enter_context(self._start())

    def restart(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.server.pid, signal.SIGKILL)
        self.close()
        self.server = self._started()

    def close(self) -> None:
        self._stack.close()

    def free(self) -> None:
        """Unload all models and forget all nodes' outputs."""
        self.server.post("/free", {"unload_models": True, "free_memory": True})
        time.sleep(_SETTLES)

    def run(self, prompt: workflows.Prompt) -> server.Outcome:
        """Run a prompt.

        Raises:
            Ended: the server is gone or hangs.
            ValueError: ComfyUI does not take the prompt; with its message.
        """
        try:
            return self.server.run(prompt)
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode(errors="replace")) from error
        except (OSError, websocket.WebSocketException) as error:
            raise Ended(f"{type(error).__name__}: {error}") from error

    def status(self) -> dict[str, Any]:
        try:
            return self.server.status()
        except OSError as error:
            raise Ended(f"{type(error).__name__}: {error}") from error


def difference(a: server.Outcome, b: server.Outcome) -> int:
    """The largest difference of two results' images, of 255; images of another shape or number differ by 255."""
    if [x.shape for x in a.images] != [y.shape for y in b.images] or not a.images:
        return 255
    return max(int(abs(x.astype(int) - y).max()) for x, y in zip(a.images, b.images, strict=True))


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
    compiled = after["compiled_calls"] - before["compiled_calls"]
    eager = after["eager_calls"] - before["eager_calls"]
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
    off = difference(reference, result)
    flat = all(int(image.max()) == int(image.min()) for image in reference.images)
    measured = {"difference": off, "flat": flat, **calls}
    if off > TOLERANCE:
        bench.free()
        again = difference(reference, bench.run(without))
        if again > TOLERANCE:
            return {"kind": "unsteady", "message": f"two plain runs differ by {again}", **measured}
        moved = _moves(bench, case, reference)
        if moved > TOLERANCE and off <= MARGIN * moved:
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
        moved.append(difference(reference, result) if result.status == "success" else 0)
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
