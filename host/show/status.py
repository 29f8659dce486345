"""What a node shows: all runs of the prompt at hand, one line each, equal ones once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...common.reasons import Reason
from ...runtime.calls.run_report import RunReport
from ..comfyui.prompt_server import prompt_server

MOST_LINES = 6  # of one component of a node; of more, the first and the last are shown
MOST_RUNS = 100  # of a node, whose reports are kept for the status route
MOST_NODES = 200  # of which texts are kept: a client may name the nodes of each prompt anew

# The lines of a node come in this order. A model's runs have no name of their own.
_MODEL, _DECODER, _ENCODER = "", "decoder", "encoder"
_PARTS = (_MODEL, _DECODER, _ENCODER, "generation", "encoding")
# What a node shows before its first run, by the name it gives it, and the components whose runs replace it.
_COVERED = {"": _PARTS, "model": (_MODEL,), "VAE": (_DECODER, _ENCODER)}


class EagerText(str):
    """What a node shows that runs nothing compiled. It knows why, for those who count."""

    reason: Reason

    def __new__(cls, reason: Reason) -> EagerText:
        text = super().__new__(cls, f"uncompiled: {reason.text}")
        text.reason = reason
        return text


@dataclass(frozen=True)
class Origin:
    """Whose a run or a compile is; None: nobody's, or not known.

    Attributes:
        client_id: as ComfyUI has it: none where a program queued the prompt without one.
    """

    prompt_id: str | None = None
    client_id: str | None = None


@dataclass
class _Node:
    """One node's texts.

    Attributes:
        intros: what it said when it was executed, which may have been for an earlier prompt.
        origin: the prompt whose runs these are.
        lines: by part, each different line with the number of its runs.
        reports: the runs in order, with their parts.
    """

    intros: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = Origin()
    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    reports: list[tuple[str, RunReport]] = field(default_factory=list)

    def text(self) -> str:
        labels = {part: f"{part}: " for part in _PARTS} | {_MODEL: "model: " if "model" in self.intros else ""}
        shown: list[str] = []
        for part in _PARTS:
            shown += [
                f"{name}: {intro}" if name else intro
                for name, intro in self.intros.items()
                if _COVERED[name][0] == part and not any(covered in self.lines for covered in _COVERED[name])
            ]
            shown += [labels[part] + line for line in _shortened(self.lines.get(part, {}))]
        return "\n".join(shown)


def _shortened(lines: Mapping[str, int]) -> list[str]:
    """The lines with their numbers of runs; of many the first and the last, and how many runs are left out."""
    texts = [f"{line} ({count} runs)" if count > 1 else line for line, count in lines.items()]
    if len(texts) <= MOST_LINES:
        return texts
    left_out = sum(list(lines.values())[1 : 2 - MOST_LINES])
    return [texts[0], f"({left_out} more runs)", *texts[2 - MOST_LINES :]]


last_runs: dict[str, RunReport] = {}  # by node, with a colon and the part where it has several
_nodes: dict[str, _Node] = {}
_lock = threading.Lock()


def current_prompt() -> str | None:
    """Return the id of the prompt that ComfyUI executes, or None without a server."""
    try:
        from comfy_execution.utils import get_executing_context

        context = get_executing_context()
        if context is not None:
            return str(context.prompt_id)
    except ImportError:  # an older ComfyUI
        pass
    prompt = getattr(prompt_server(), "last_prompt_id", None)
    return None if prompt is None else str(prompt)


def current_origin() -> Origin:
    """Return the prompt that ComfyUI executes, and the client that queued it."""
    server = prompt_server()
    client = getattr(server, "client_id", None)
    return Origin(current_prompt(), None if client is None else str(client))


def has_ended(prompt_id: str | None) -> bool:
    """Tell whether a prompt neither runs nor waits. Without a server (in-process use) nobody can tell, so never."""
    queue = getattr(prompt_server(), "prompt_queue", None)
    if queue is None or prompt_id is None:
        return False
    return not any(item[1] == prompt_id for items in queue.get_current_queue_volatile() for item in items)


def intro(node_id: str, intros: Mapping[str, str]) -> str:
    """Note that a node was executed; return its text now.

    Args:
        intros: what it says until its first run: by `model` and `VAE` where the node has both, else by an empty name.
    """
    with _lock:
        node = _of_this_prompt(node_id)
        node.intros = dict(intros)
        return node.text()


def added(node_id: str, part: str, report: RunReport) -> str:
    """Note that a run through a node is over; return its text now."""
    with _lock:
        node = _of_this_prompt(node_id)
        lines = node.lines.setdefault(part, {})
        line = report.text()
        lines[line] = lines.get(line, 0) + 1
        node.reports.append((part, report))
        del node.reports[:-MOST_RUNS]
        return node.text()


def with_progress(node_id: str, progress: str) -> str:
    """Return the text of the runs so far, and of what is going on now."""
    with _lock:
        node = _of_this_prompt(node_id)
        return "\n".join([node.text(), progress] if node.lines else [progress])


def reports_of(node_id: str) -> list[RunReport]:
    """Return the reports of the runs of a node's last prompt, in order."""
    with _lock:
        return [report for _, report in _nodes.get(node_id, _Node()).reports]


def origin_of(node_id: str) -> Origin:
    """Return the prompt that a node ran in last, and whose it is."""
    with _lock:
        return _nodes.get(node_id, _Node()).origin


def refusals_of(node_id: str) -> list[Reason]:
    """Say why a node runs nothing compiled at all, as far as it said so when it was executed."""
    with _lock:
        intros = _nodes.get(node_id, _Node()).intros.values()
        return [intro.reason for intro in intros if isinstance(intro, EagerText)]


def ran_in(prompt_id: str) -> set[str]:
    """Return the nodes of which runs of a prompt are over."""
    with _lock:
        return {name for name, node in _nodes.items() if node.origin.prompt_id == prompt_id and node.reports}


def node_ids() -> list[str]:
    """Return the nodes of which something is known."""
    with _lock:
        return [*_nodes]


def prompts() -> dict[str, str | None]:
    """By node, the prompt that it ran in last: that of its reports."""
    with _lock:
        return {name: node.origin.prompt_id for name, node in _nodes.items()}


def all_runs() -> dict[str, list[dict[str, Any]]]:
    """By node, the reports of all runs of its last prompt, in order; `part` is empty for a model's."""
    with _lock:
        return {n: [{"part": p, **report.to_json()} for p, report in node.reports] for n, node in _nodes.items()}


def _of_this_prompt(node_id: str) -> _Node:
    """The node's texts, without the runs of another prompt.

    Without a server nobody says which runs belong together, so each stands alone.
    """
    node = _nodes.pop(node_id, None) or _Node()
    _nodes[node_id] = node  # the last one now
    while len(_nodes) > MOST_NODES:
        del _nodes[next(iter(_nodes))]
    origin = current_origin()
    if origin.prompt_id is None or origin != node.origin:
        node.origin = origin
        node.lines, node.reports = {}, []
    return node
