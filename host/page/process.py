"""What this process did and shows, and whether it is ready: GET /onegraph/status, badges and ready."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...backends import cuda_graphs
from ...runtime.obtain.registry import registry
from ..show import badges, progress, results
from ..show import status as node_status
from .answers import WithStatus
from .models import Badges, NoFields, Readiness, StatusOf
from .texts import texts_without_paths
from .warm_up import warm_up


def status() -> dict[str, Any]:
    """Return the counters of this process, the runs of each node's last prompt, and what each node shows.

    Takes no lock: a compile or a call must not hold it up. The prompt's thread fills these dicts meanwhile, so each is
    copied in one operation of the interpreter before anything walks it.
    """
    counters = registry().counters
    eager: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    for reason, calls in counters.reasons.copy().items():
        eager[reason.text] += calls
        codes[reason.code] += calls
    state: dict[str, Any] = {
        "compiles": counters.compiles,
        "restores": counters.restores,
        "fetches": counters.fetches,
        "preloads": counters.preloads,
        "binds": counters.binds,
        "compiled_calls": counters.compiled_calls,
        "replayed_calls": cuda_graphs.counters.replayed_calls,
        "eager_calls": counters.eager_calls,
        "reasons": dict(eager),
        "codes": dict(codes),
        **registry().status(),
        "runs": {node: report.to_json() for node, report in node_status.last_runs.copy().items()},
        "all_runs": node_status.all_runs(),
        "prompts": node_status.prompts(),
        "said": progress.texts.copy(),
    }
    shown: dict[str, Any] = texts_without_paths(state)
    return shown


def read(fields: StatusOf) -> dict[str, Any]:
    """GET status: of this process, or what one prompt ended with."""
    if fields.prompt_id is None:
        return status()
    ended = node_status.has_ended(fields.prompt_id)
    return {"prompt_id": fields.prompt_id, "ended": ended, "nodes": results.of_prompt(fields.prompt_id)}


def all_badges(fields: NoFields) -> Badges:
    """GET badges: those of all nodes, for a page that was just opened."""
    return Badges(badges=badges.all_badges())


def ready(fields: NoFields) -> Readiness | WithStatus:
    """GET ready: 200 once the graphs of the warm-up list are restored, or without a list; 503 before."""
    left = warm_up.waiting_for()
    answer = Readiness(ready=not left, waiting_for=left)
    return WithStatus(503, answer) if left else answer
