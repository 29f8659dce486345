"""GET /onegraph/status: what this process compiled, restored and ran, for headless clients and tests."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...backends import cuda_graphs
from ...runtime.obtain.registry import registry
from ..show import progress
from ..show import status as node_status
from .models import Nothing
from .texts import texts_without_paths


def status() -> dict[str, Any]:
    """Counters of the process, the last run and all runs of each node's last prompt, and what each node shows.

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


def read(asked: Nothing) -> dict[str, Any]:
    """GET status."""
    return status()
