"""GET /onegraph/status: what this process compiled, restored and ran, for headless clients and tests."""

from __future__ import annotations

import functools
import ipaddress
import os
import re
from collections import Counter
from typing import Any

from ..backends import cuda_graphs
from ..common import reasons
from ..common.errors import without_paths
from ..runtime.registry import registry
from . import progress
from . import status as node_status

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^][/@?#:\s]+))(?::[0-9]{1,5})?", re.ASCII)
_NAME = re.compile(r"[a-z0-9_.-]{1,253}")  # what may be repeated in an answer
_PRIVATE = re.compile(r"[a-z][a-z0-9_-]*|[a-z0-9_.-]+\.(?:localhost|local|internal|lan|home|corp|home\.arpa)")
_OWN_PAGES = ("same-origin", "none")  # of Sec-Fetch-Site; none: the user typed the address
_shortened = functools.lru_cache(maxsize=4096)(without_paths)


def refusal(host: str | None, listen: str, site: str | None = None) -> reasons.HostNotAllowed | None:
    """Why a request is not answered, or None: it names this server as no web site can, or its own page asks.

    A browser sends the name of the site whose page asks. A site whose name leads to this machine (DNS rebinding) is of
    one origin with the server for the browser, and could read any answer. Names without a dot, as in a compose file,
    and those of private networks lead to no web site. `Sec-Fetch-Site`, which no page can set, is sent over HTTPS or to
    this very machine alone, where the name was proved by a certificate, as that of a proxy.

    Args:
        host: the request's Host; None where it has none, which no browser's does.
        listen: the addresses or names that the server was told to listen on, separated by commas.
        site: the request's Sec-Fetch-Site.
    """
    if host is None:
        return None
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return reasons.HostNotAllowed("")
    name = _normalized(found[1] or found[2])
    known = {"localhost", *map(_normalized, listen.split(",")), *map(_normalized, _allowed().split(","))}
    if name in known - {""} or "*" in known or _PRIVATE.fullmatch(name) or site in _OWN_PAGES or _is_address(name):
        return None
    return reasons.HostNotAllowed(name if _NAME.fullmatch(name) else "")


def _allowed() -> str:
    """Names by which clients may ask for this server, separated by commas: those of a proxy. `*`: any."""
    return os.environ.get("ONEGRAPH_ALLOWED_HOSTS", "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _normalized(host: str) -> str:
    return host.strip().lower().removesuffix(".")


def texts_without_paths(value: Any) -> Any:
    """Reduce each absolute path in the texts of a JSON value, keys too, to its last component.

    Numbers whose keys become equal are added.
    """
    if isinstance(value, str):
        return _shortened(value)
    if isinstance(value, list):
        return [texts_without_paths(item) for item in value]
    if not isinstance(value, dict):
        return value
    found: dict[Any, Any] = {}
    for key, item in value.items():
        name, shown = texts_without_paths(key), texts_without_paths(item)
        before = found.get(name)
        numbers = isinstance(before, int | float) and isinstance(shown, int | float)
        found[name] = before + shown if numbers else shown
    return found


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
    found: dict[str, Any] = {
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
    shown: dict[str, Any] = texts_without_paths(found)
    return shown


def register() -> None:
    """Add the route to ComfyUI's server; without a server (in-process use) there is nothing to do."""
    from aiohttp import web
    from comfy.cli_args import args
    from server import PromptServer

    server = getattr(PromptServer, "instance", None)
    if server is None:
        return

    @server.routes.get("/onegraph/status")
    async def get_status(request: web.Request) -> web.Response:
        host, site = request.headers.get("Host"), request.headers.get("Sec-Fetch-Site")
        refused = refusal(host, args.listen, site)
        if refused is not None:
            return web.json_response({"error": refused.text, "code": refused.code}, status=403)
        return web.json_response(status())
