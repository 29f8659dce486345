"""What a prompt ended with, node by node: for programs, in the status route and in ComfyUI's history.

ComfyUI puts the very lists that a node returned as its `ui` into the history, when the prompt is over. Runs come after
their node was executed, and a node that ComfyUI has cached is not executed at all. So a node returns one list for ever,
which gets an entry for each prompt. Where a ComfyUI copies lists, the history has what was known at the node.
"""

from __future__ import annotations

import threading
from typing import Any

from ...common.errors import without_paths
from ...common.log import logger
from . import badges, status

log = logger("host")

MOST_RESULTS = 2000  # of a node in a prompt
MOST_LISTED = 10  # of a node: each answer of /history has them all


_results: dict[tuple[str, str], dict[str, Any]] = {}  # by prompt and node
_lists: dict[str, list[dict[str, Any]]] = {}  # by node
_lock = threading.Lock()


def note(node_id: str, text: str) -> None:
    """Note what is known of a node's prompt now; `text`: what the node shows. Never raises."""
    try:
        prompt_id = status.origin_of(node_id).prompt_id
        if prompt_id is None:  # no server
            return
        badge = badges.after(status.reports_of(node_id), status.refusals_of(node_id))
        result = badge.model_dump(mode="json", exclude={"progress"}) | {
            "prompt_id": prompt_id,
            "state": "not_run" if badge.state == "waiting" else badge.state,
            "text": without_paths(text),
            "compiled_calls": badge.calls - badge.eager_calls,
        }
        with _lock:
            _results.pop((prompt_id, node_id), None)
            _results[prompt_id, node_id] = result
            while len(_results) > MOST_RESULTS:
                del _results[next(iter(_results))]
            shared = _listed(node_id)
            others = [one for one in shared if one["prompt_id"] != prompt_id]
            shared[:] = [*others[1 - MOST_LISTED :], result]
    except Exception:  # a lost result must never end a sampling run
        log.debug("no result of node %s", node_id, exc_info=True)


def ui(node_id: str | None) -> dict[str, Any] | None:
    """Return the `ui` of a node; None without a server.

    A list in a list: of what is directly in a `ui`, the host counts each dict as an image that was made.
    """
    if node_id is None or status.origin_of(node_id).prompt_id is None:
        return None
    with _lock:
        return {"onegraph": [_listed(node_id)]}


def of_prompt(prompt_id: str) -> dict[str, dict[str, Any]]:
    """Return the results of a prompt by node; nothing where no model ran, or too long ago."""
    with _lock:
        return {node: result for (prompt, node), result in _results.items() if prompt == prompt_id}


def _listed(node_id: str) -> list[dict[str, Any]]:
    shared = _lists.pop(node_id, [])
    _lists[node_id] = shared  # the last one now
    while len(_lists) > status.MOST_NODES:
        del _lists[next(iter(_lists))]
    return shared
