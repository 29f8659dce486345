"""GET /onegraph/status: what this process compiled, restored and ran, for headless clients and tests."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..backends import cuda_graphs
from ..common import messages
from ..runtime.registry import registry
from . import progress
from . import status as node_status


def status() -> dict[str, Any]:
    """Counters of the process, the last run and all runs of each node's last prompt, and what each node shows.

    Takes no lock: a compile or a call must not hold it up. The prompt's thread fills these dicts meanwhile, so each is
    copied in one operation of the interpreter before anything walks it.
    """
    counters = registry().counters
    eager: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    for reason, calls in counters.reasons.copy().items():
        eager[messages.text(reason)] += calls
        codes[reason.code] += calls
    return {
        "compiles": counters.compiles,
        "restores": counters.restores,
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
        "said": progress.texts.copy(),
    }


def register() -> None:
    """Add the route to ComfyUI's server; without a server (in-process use) there is nothing to do."""
    from aiohttp import web
    from server import PromptServer

    server = getattr(PromptServer, "instance", None)
    if server is None:
        return

    @server.routes.get("/onegraph/status")
    async def get_status(request: web.Request) -> web.Response:
        return web.json_response(status())
