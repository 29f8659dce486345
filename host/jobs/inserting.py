"""Compile Model put behind whatever loads a model: in a prompt by what the server tells, in a file by the file.

`python -m onegraph.host.jobs.inserting WORKFLOW TARGET` writes a workflow anew; the line printed is JSON: the nodes
behind which Compile Model was put, and why nothing was written. Imports neither torch nor ComfyUI.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .editor_workflow import Types, default_of, described_as, inputs_of, is_editors, prompt_of
from .trial_runs import CannotTellError, JobError, Prompt, is_link, is_of_ours, nodes_of_ours, read

COMPILE_MODEL = "OneGraphCompileModel"

_OFF = (2, 4)  # modes of nodes that are muted or bypassed
_VIRTUAL = frozenset({"GetNode", "PrimitiveNode", "Reroute"})  # of the front end, which pass on what others give
_GAP, _SIZE, _TITLE = 60, [300, 130], 30  # pixels; titles are above a node's place


def with_compile_nodes(prompt: Prompt, types: Types) -> tuple[Prompt, list[str]]:
    """Put Compile Model (OneGraph) behind whatever loads a model, where a prompt has no node of the pack.

    Returns:
        The prompt; the nodes behind which one was put.

    Raises:
        JobError: the server has no OneGraph.
    """
    if nodes_of_ours(prompt):
        return prompt, []
    if COMPILE_MODEL not in types:
        raise JobError("This ComfyUI has no OneGraph. Install it among its custom nodes.")
    defaults: dict[str, Any] = {}
    for name, described in inputs_of(types[COMPILE_MODEL]).items():
        defaults |= default_of(name, described)
    changed, made, loaders = copy.deepcopy(prompt), {}, list[str]()
    for key, node in prompt.items():
        kind = types[node["class_type"]]
        slots = [slot for slot, one in enumerate(kind.get("output") or ()) if one == "MODEL"]
        models = [name for name, one in inputs_of(kind).items() if described_as(one)[0] == "MODEL"]
        if not slots or any(is_link(node["inputs"].get(name)) for name in models):
            continue
        loaders.append(key)
        for slot in slots:
            name = f"{key} compiled" if slot == slots[0] else f"{key} compiled {slot}"
            made[name] = {"class_type": COMPILE_MODEL, "inputs": {**defaults, "model": [key, slot]}}
            for other in changed.values():
                for input_name, value in other["inputs"].items():
                    if value == [key, slot]:
                        other["inputs"][input_name] = [name, 0]
    return changed | made, loaders


def prompt_of_editors(data: Mapping[str, Any], types: Types, name: str) -> tuple[Prompt, list[str]]:
    """Make a prompt of a workflow that the editor saved, with nodes of the pack.

    Args:
        name: of the workflow's file, for errors.

    Returns:
        The prompt; the nodes behind which Compile Model was put, for people.

    Raises:
        JobError: it cannot be read, or needs what this ComfyUI does not have.
    """
    prompt, loaders = with_compile_nodes(prompt_of(data, types, name), types)
    if not nodes_of_ours(prompt):
        raise CannotTellError(f"{name} samples no model on this machine, so no graph is needed.")
    return prompt, [f"{key} ({prompt[key]['class_type']})" for key in loaders]


def inserted(data: Any, name: str) -> tuple[dict[str, Any], list[str]]:
    """Return a workflow with Compile Model (OneGraph) behind each node that loads a model, in subgraphs, too.

    Args:
        name: of the workflow's file, for errors.

    Returns:
        The workflow, and the nodes behind which one was put: none where it has a node of the pack.

    Raises:
        JobError: it is none of the editor, or cannot be read.
    """
    if not is_editors(data):
        raise JobError(f"{name} is no workflow of the editor.")
    made: dict[str, Any] = copy.deepcopy(data)
    try:
        subgraphs = (made.get("definitions") or {}).get("subgraphs") or []
        graphs = [made, *subgraphs]
        if any(is_of_ours(node["type"]) for graph in graphs for node in graph["nodes"]):
            return made, []
        passing = _VIRTUAL | {one["id"] for one in subgraphs}
        numbers = _Numbers(graphs)
        return made, [text for graph in graphs for text in _put_into(graph, passing, numbers)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise JobError(f"{name} is no workflow that can be read ({type(error).__name__}: {error}).") from error


class _Numbers:
    """Ids that no node and no link has."""

    def __init__(self, graphs: list[dict[str, Any]]) -> None:
        self.node = max((_number(node["id"]) for graph in graphs for node in graph["nodes"]), default=0)
        self.link = max((_number(_id_of(link)) for graph in graphs for link in graph.get("links") or ()), default=0)

    def take(self, graph: dict[str, Any]) -> tuple[int, int]:
        """Take the next free ids, of a node and of a link, and note them in a graph."""
        self.node, self.link = self.node + 1, self.link + 1
        state = graph.get("state")
        if isinstance(state, dict):
            state["lastNodeId"], state["lastLinkId"] = self.node, self.link
        else:
            graph["last_node_id"], graph["last_link_id"] = self.node, self.link
        return self.node, self.link


def _number(value: Any) -> int:
    return value if type(value) is int else 0


def _id_of(link: Any) -> Any:
    return link["id"] if isinstance(link, dict) else link[0]


def _put_into(graph: dict[str, Any], passing: frozenset[str], numbers: _Numbers) -> Iterator[str]:
    for node in [*graph["nodes"]]:
        takes = any(one.get("type") == "MODEL" for one in node.get("inputs") or ())
        if takes or node["type"] in passing or node.get("mode") in _OFF:
            continue
        for slot, output in enumerate(node.get("outputs") or ()):
            if output.get("type") == "MODEL" and output.get("links"):
                _put_behind(graph, node, slot, *numbers.take(graph))
                yield f"{node['id']} ({node['type']})"


def _put_behind(graph: dict[str, Any], node: dict[str, Any], slot: int, number: int, link: int) -> None:
    output = node["outputs"][slot]
    moved, output["links"] = output["links"], [link]
    for other in graph["links"]:
        if _id_of(other) in moved:
            if isinstance(other, dict):
                other["origin_id"], other["origin_slot"] = number, 0
            else:
                other[1:3] = [number, 0]
    ends = {"origin_id": node["id"], "origin_slot": slot, "target_id": number, "target_slot": 0, "type": "MODEL"}
    in_lists = bool(graph["links"]) and isinstance(graph["links"][0], list)
    graph["links"].append([link, *ends.values()] if in_lists else {"id": link, **ends})
    pos = _free_spot(node, graph["nodes"])
    graph["nodes"].append({
        "id": number, "type": COMPILE_MODEL, "pos": pos, "size": [*_SIZE], "flags": {}, "order": 0, "mode": 0,
        "inputs": [{"name": "model", "type": "MODEL", "link": link}],
        "outputs": [{"name": "MODEL", "type": "MODEL", "links": moved}],
        "properties": {"Node name for S&R": COMPILE_MODEL}, "widgets_values": [],
    })  # fmt: skip


def _free_spot(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> list[float]:
    """A place for another node right of a node, below, above or left of it, where none is in the way."""
    x, y, width, height = _box(node)
    spots = [
        [x + width + _GAP, y],
        [x, y + height + _GAP],
        [x, y - _SIZE[1] - _GAP],
        [x - _SIZE[0] - _GAP, y],
    ]
    boxes = [_box(one) for one in nodes if one.get("pos")]
    return next((spot for spot in spots if not any(_overlaps(spot, box) for box in boxes)), spots[0])


def _box(node: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """Place and size of a node; older front ends wrote `{"0": ..., "1": ...}`."""
    pairs = [node.get("pos") or (0, 0), node.get("size") or _SIZE]
    x, y, width, height = (float(one) for pair in pairs for one in (pair.values() if isinstance(pair, dict) else pair))
    return x, y, width, height


def _overlaps(spot: Sequence[float], box: tuple[float, float, float, float]) -> bool:
    """Whether a new node at a spot would cover another one."""
    (x, y), (left, top, width, height) = spot, box
    beside = x >= left + width or x + _SIZE[0] <= left
    return not (beside or y - _TITLE >= top + height or y + _SIZE[1] <= top - _TITLE)


def write(workflow: Path, target: Path) -> dict[str, Any]:
    """Write a workflow with the nodes. Never raises for what the files are.

    Returns:
        JSON-ready: `after`, the nodes behind which one was put, and `error`, why nothing was written.
    """
    after: list[str] = []
    try:
        made, after = inserted(read(workflow), workflow.name)
        if not after:
            return _told(after, f"{workflow.name} has a node of OneGraph, or none that loads a model.")
        target.write_text(json.dumps(made), encoding="utf-8")
    except JobError as error:
        return _told(after, str(error))
    except OSError as error:
        return _told(after, f"{target.name} cannot be written: {error.strerror or error}.")
    return _told(after, "")


def _told(after: list[str], error: str) -> dict[str, Any]:
    return {"after": after, "error": error}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(write(*map(Path, sys.argv[1:]))) + "\n")
