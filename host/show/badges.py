"""The badge on a node: what its last prompt's runs were, or what compiles now. Told to open pages as it changes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from ...common import remedies
from ...common.errors import without_paths
from ...common.log import logger
from ...common.reasons import Reason
from ...common.strict import Strict
from ...compiler.process.progress import Progress
from ...runtime.calls.run_report import RunReport, faster
from . import events, status
from .status import Origin

log = logger("host")

BadgeState = Literal["waiting", "not_run", "compiling", "restored", "compiled", "eager", "partly"]
_EVERY = 0.5  # seconds between two events of one compile
_MOST_REASONS = 20


class Why(Strict):
    """Calls that ran eager for one reason.

    Attributes:
        remedy: names what to do (`common.remedies`); None: `text` says it.
    """

    code: str
    text: str
    calls: int
    remedy: str | None = None


class Badge(Strict):
    """What a node did in its last prompt, or does now.

    Attributes:
        text: in English, a few words.
        progress: of a compile, 0 to 1; None: nothing compiles.
        seconds: of the last compile or restore.
        speedup: how many times as fast as eager a call of the model was at its graph's first use; None: not measured.
        blocks_speedup: of the blocks alone, where blocks are compiled. No call of the whole model is timed there.
        calls, eager_calls: of the model. Where blocks are compiled, an eager call is one without any graph, while
            `reasons` counts calls of blocks, too.
        compiled_s: seconds in which calls of the model ran compiled, restoring and comparing included.
    """

    state: BadgeState
    text: str
    progress: float | None = None
    seconds: float | None = None
    speedup: float | None = None
    blocks_speedup: float | None = None
    eager_calls: int = 0
    calls: int = 0
    compiled_s: float = 0.0
    reasons: tuple[Why, ...] = ()


class BadgeOf(Strict):
    """Whose a badge is. The ids of nodes are the same in many workflows: the prompt tells them apart.

    Attributes:
        prompt_id, client_id: see `status.Origin`.
        badge: None: there is none any more.
    """

    node: str
    prompt_id: str | None
    client_id: str | None
    badge: Badge | None


# By node and whose it is, how far a compile is: it may go on in the background while the node runs in other prompts.
_compiles: dict[tuple[str, Origin], float] = {}
_sent: dict[tuple[str, Origin], float] = {}  # when the last progress was
_lock = threading.Lock()


def compiling(node_id: str | None, origin: Origin, progress: Progress | None) -> None:
    """Follow a compile for a node, which a prompt needs; None: it has ended. Never raises."""
    if node_id is None:
        return
    key = node_id, origin
    with _lock:
        if progress is None:
            _compiles.pop(key, None)
            _sent.pop(key, None)
        else:
            _compiles[key] = progress.share
            now = time.monotonic()
            if now - _sent.get(key, 0.0) < _EVERY:
                return
            _sent[key] = now
    _send(node_id, origin)


def send(node_id: str) -> None:
    """Tell open pages of the badge of a node's last prompt. Never raises."""
    _send(node_id, status.origin_of(node_id))


def _send(node_id: str, origin: Origin) -> None:
    try:
        told = BadgeOf(node=node_id, **vars(origin), badge=of(node_id, origin))
        events.send("onegraph.badge", told.model_dump(mode="json"))
    except Exception:  # a lost badge must never end a sampling run
        log.debug("no badge of node %s", node_id, exc_info=True)


def all_badges() -> list[BadgeOf]:
    """For pages that were just opened: of each node the last prompt's badge, and those of other prompts' compiles."""
    origins = dict.fromkeys([*((node, status.origin_of(node)) for node in status.node_ids()), *_compiles.copy()])
    return [
        BadgeOf(node=node, **vars(origin), badge=badge)
        for node, origin in origins
        if (badge := of(node, origin)) is not None
    ]


def of(node_id: str, origin: Origin) -> Badge | None:
    """Return the badge of a node for a prompt now; None: another prompt ran through it since."""
    share = _compiles.get((node_id, origin))
    if origin == status.origin_of(node_id):
        reports = status.reports_of(node_id)
        badge = after(reports, status.refusals_of(node_id))
        if badge.state == "waiting" and (reports or status.has_ended(origin.prompt_id)):
            badge = badge.model_copy(update={"state": "not_run", "text": "not run"})
    elif share is None:
        return None
    else:
        badge = Badge(state="waiting", text="waiting")
    if share is None:
        return badge
    share = round(share, 3)
    return badge.model_copy(update={"state": "compiling", "text": f"compiling {share:.0%}", "progress": share})


def after(reports: Sequence[RunReport], refusals: Sequence[Reason]) -> Badge:
    """Make the badge after some runs; `refusals`: why there are none that could be compiled."""
    compiled = sum(report.compiled_calls for report in reports)
    whole: Counter[Reason] = Counter()
    why: Counter[Reason] = Counter()
    for report in reports:
        whole += report.eager.copy()
        why += report.blocks.eager.copy()
    why += whole
    eager = sum(whole.values())
    times = [one for one in map(_times, reports) if one is not None]
    state: BadgeState = times[-1][0] if times else "compiled"
    seconds = times[-1][1] if times else None
    speedup = _last(None if report.blocks.of else report.speedup for report in reports)
    blocks_speedup = _last(report.blocks.speedup for report in reports)
    reasons = why or Counter(dict.fromkeys(refusals, 0))
    if not compiled:
        state = "eager" if reasons else "waiting"
    elif why:
        state = "partly"
    badge = Badge(
        state=state,
        text="",
        seconds=None if seconds is None else round(seconds, 3),
        speedup=speedup,
        blocks_speedup=blocks_speedup,
        eager_calls=eager,
        calls=compiled + eager,
        compiled_s=round(sum(report.compiled_seconds for report in reports), 3),
        reasons=tuple(
            Why(code=reason.code, text=without_paths(reason.text), calls=calls, remedy=remedies.remedy(reason))
            for reason, calls in reasons.most_common(_MOST_REASONS)
        ),
    )
    return badge.model_copy(update={"text": _text(badge, sum(why.values()))})


def _times(report: RunReport) -> tuple[Literal["compiled", "restored"], float] | None:
    """How a run got its graph, and in how many seconds; None: it was loaded before."""
    timed = report.blocks if report.blocks.of else report
    if timed.compile_s is not None:
        return "compiled", timed.compile_s
    return None if timed.restore_s is None else ("restored", timed.restore_s)


def _last(speedups: Iterable[float | None]) -> float | None:
    measured = [speedup for speedup in speedups if speedup]
    return round(measured[-1], 2) if measured else None


def _text(badge: Badge, eager_calls: int) -> str:
    """A badge's few words. `eager_calls`: of the model and of its blocks."""
    if badge.state == "partly":
        some = f"{badge.eager_calls} of {badge.calls} calls" if badge.eager_calls else f"{eager_calls} block calls"
        return f"{some} uncompiled"
    if badge.state not in ("compiled", "restored"):
        return "uncompiled" if badge.state == "eager" else badge.state
    parts = []
    if (seconds := badge.seconds) is not None:
        parts.append(f"{badge.state} {seconds:.1f} s" if seconds < 10 else f"{badge.state} {seconds:.0f} s")
    if badge.speedup is not None:
        parts.append(faster(badge.speedup))
    if badge.blocks_speedup is not None:
        parts.append(f"blocks {faster(badge.blocks_speedup)} at first use")
    return ", ".join(parts) or badge.state
