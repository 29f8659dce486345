"""The badge on a node: what its last prompt's runs were, or what compiles now. Told to open pages as it changes."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ..common import remedies
from ..common.errors import without_paths
from ..common.reasons import Reason
from ..compiler.progress import Progress
from ..runtime.run_report import RunReport
from . import events, status

log = logging.getLogger("onegraph.host")

State = Literal["waiting", "compiling", "restored", "compiled", "eager", "partly"]
_EVERY = 0.5  # seconds between two events of one compile
_MOST_REASONS = 20


class Why(BaseModel):
    """Calls that ran eager for one reason.

    Attributes:
        remedy: names what to do (`common.remedies`); None: `text` says it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    code: str
    text: str
    calls: int
    remedy: str | None = None


class Badge(BaseModel):
    """What a node did in its last prompt, or does now.

    Attributes:
        text: in English, a few words.
        progress: of a compile, 0 to 1; None: nothing compiles.
        seconds: of the last compile or restore.
        calls, eager_calls: of the model. Where blocks are compiled, an eager call is one without any graph, while
            `reasons` counts calls of blocks, too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    state: State
    text: str
    progress: float | None = None
    seconds: float | None = None
    speedup: float | None = None
    eager_calls: int = 0
    calls: int = 0
    reasons: tuple[Why, ...] = ()


_compiles: dict[str, float] = {}  # by node, how far its compile is
_prompts: dict[str, str | None] = {}  # by node that compiles, the prompt that needs the graph
_sent: dict[str, float] = {}  # by node, when the last progress was
_lock = threading.Lock()


def compiling(node_id: str | None, progress: Progress | None) -> None:
    """Follow a compile for a node; None: it has ended. Never raises."""
    if node_id is None:
        return
    with _lock:
        if progress is None:
            _compiles.pop(node_id, None)
            _sent.pop(node_id, None)
        else:
            if node_id not in _compiles:
                _prompts[node_id] = status.current_prompt()
            _compiles[node_id] = progress.share
            now = time.monotonic()
            if now - _sent.get(node_id, 0.0) < _EVERY:
                return
            _sent[node_id] = now
    send(node_id)
    if progress is None:
        _prompts.pop(node_id, None)


def send(node_id: str) -> None:
    """Tell open pages of a node's badge. Never raises."""
    try:
        badge = of(node_id).model_dump(mode="json")
        events.send("onegraph.badge", {"node": node_id, "prompt": prompt_of(node_id), "badge": badge})
    except Exception:  # a lost badge must never end a sampling run
        log.debug("no badge of node %s", node_id, exc_info=True)


def all_badges() -> dict[str, Badge]:
    """By node, for pages that were just opened."""
    return {node: of(node) for node in {*status.node_ids(), *_compiles.copy()}}


def prompt_of(node_id: str) -> str | None:
    """The prompt that a node's badge is of: ids of nodes are the same in many workflows."""
    return _prompts.get(node_id) or status.prompt_of(node_id)


def of(node_id: str) -> Badge:
    """The badge of a node now."""
    reports, share = status.reports_of(node_id), _compiles.get(node_id)
    badge = _after(reports, status.refusals_of(node_id))
    if share is None:
        return badge
    share = round(share, 3)
    return badge.model_copy(update={"state": "compiling", "text": f"compiling {share:.0%}", "progress": share})


def _after(reports: Sequence[RunReport], refusals: Sequence[Reason]) -> Badge:
    """The badge after some runs; `refusals`: why there are none that could be compiled."""
    compiled = sum(report.compiled_calls for report in reports)
    whole: Counter[Reason] = Counter()
    why: Counter[Reason] = Counter()
    for report in reports:
        whole += report.eager.copy()
        why += report.blocks.eager.copy()
    why += whole
    eager = sum(whole.values())
    known = [one for one in map(_times, reports) if one is not None]
    state: State = known[-1][0] if known else "compiled"
    seconds = known[-1][1] if known else None
    speedups = [s for report in reports if (s := report.blocks.speedup if report.blocks.of else report.speedup)]
    speedup = round(speedups[-1], 2) if speedups else None
    reasons = why or Counter(dict.fromkeys(refusals, 0))
    if not compiled:
        state = "eager" if reasons else "waiting"
    elif why:
        state = "partly"
    return Badge(
        state=state,
        text=_text(state, eager, compiled + eager, sum(why.values()), seconds, speedup),
        seconds=None if seconds is None else round(seconds, 3),
        speedup=speedup,
        eager_calls=eager,
        calls=compiled + eager,
        reasons=tuple(
            Why(code=reason.code, text=without_paths(reason.text), calls=calls, remedy=remedies.remedy(reason))
            for reason, calls in reasons.most_common(_MOST_REASONS)
        ),
    )


def _times(report: RunReport) -> tuple[Literal["compiled", "restored"], float] | None:
    """How a run got its graph, and in how many seconds; None: it was loaded before."""
    found = report.blocks if report.blocks.of else report
    if found.compile_s is not None:
        return "compiled", found.compile_s
    return None if found.restore_s is None else ("restored", found.restore_s)


def _text(state: State, eager: int, calls: int, whys: int, seconds: float | None, speedup: float | None) -> str:
    if state == "partly":
        return f"{eager} of {calls} calls eager" if eager else f"{whys} block calls eager"
    if state not in ("compiled", "restored"):
        return state
    parts = []
    if seconds is not None:
        parts.append(f"{state} {seconds:.1f} s" if seconds < 10 else f"{state} {seconds:.0f} s")
    if speedup is not None:
        parts.append(f"{speedup:.1f}x")
    return ", ".join(parts) or state
