"""A workflow in a short form: two steps of each sampler, nothing saved, run until nothing compiles any more.

Everything else is as in a run of the workflow, so that the graphs that this needs are those that a run needs. Where it
runs is the caller's: on a server over HTTP (`workflow_job`), or in this one (`baking`).
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

STEPS = 2
_TOKENS = 4  # of a text: its prompt is one call, and all others are alike
MOST_ROUNDS = 4  # after which something compiles at each run
_PAUSE = 0.3
_SINK = "PreviewAny"  # takes anything, and writes nothing
_CALLED = ("MODEL", "VAE", "CONTROL_NET", "CLIP")  # types of what runs graphs; those named PIPE hold some
_OURS, _ONEDIFFS = ("OneGraphCompile", "OneGraphLoad"), ("OneDiff", "SVDSpeedup")  # that run graphs

Prompt = dict[str, dict[str, Any]]
Mode = Literal["bake", "explain"]  # explain compiles nothing
Tell = Callable[..., None]  # takes the name of an event and its facts


class JobError(Exception):
    """The workflow cannot be run; the message tells why and what to do."""


class CannotTellError(JobError):
    """The workflow cannot be run on this machine, or needs no graph: nothing can be told of its graphs."""


@dataclass(frozen=True)
class NodeType:
    """What a server tells of a type of node: whether a workflow ends with it, and the types of its outputs."""

    ends: bool
    gives: tuple[str, ...]


class Server(Protocol):
    """Where a workflow runs."""

    def node_type(self, kind: str) -> NodeType:
        """Describe a type of node, by the name that workflows give it. Raises what ends the job."""

    def status(self) -> dict[str, Any]:
        """As `GET /onegraph/status`. Raises what ends the job."""

    def queue(self, prompt: Prompt) -> str:
        """Queue a workflow; its id. Raises JobError."""

    def result(self, prompt_id: str) -> dict[str, Any] | None:
        """Return the status of a workflow that has ended, as ComfyUI's history has it."""

    def stop(self, prompt_id: str) -> None:
        """Have a workflow end. Never raises."""


def read(path: Path) -> Any:
    """Read a workflow's JSON. Raises JobError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JobError(f"{path.name} cannot be read as JSON ({error}).") from error


def checked(data: Any, name: str) -> Prompt:
    """Take a workflow in the API format from JSON. Raises JobError."""
    if isinstance(data, dict) and isinstance(data.get("nodes"), list):
        raise JobError(f"{name} is a workflow for the editor. Export it there with `Export (API)`.")
    prompt = data.get("prompt", data) if isinstance(data, dict) else None
    nodes = prompt.values() if isinstance(prompt, dict) else ()
    if not nodes or not all(map(_is_node, nodes)):
        raise JobError(f"{name} is no workflow in ComfyUI's API format.")
    assert isinstance(prompt, dict)
    return prompt


def _is_node(node: Any) -> bool:
    if not isinstance(node, dict) or not isinstance(node.get("class_type"), str):
        return False
    return isinstance(node.get("inputs", {}), dict)


def is_link(value: Any) -> bool:
    """Tell whether an input of a prompt's node is an output of another one.

    >>> is_link(["4", 0])
    True
    >>> is_link("photo.safetensors")
    False
    """
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)


def _links(node: dict[str, Any]) -> list[tuple[str, int]]:
    """Which outputs of which nodes a node is given."""
    return [(value[0], value[1]) for value in node.get("inputs", {}).values() if is_link(value)]


def _without_ends(prompt: Prompt, types: Callable[[str], NodeType]) -> Prompt:
    """Replace nodes that a workflow ends with, whatever they save or show, by ones that only ask for their inputs.

    One stays where another node uses its output, or where it may be what runs graphs: a sampler that shows its image.
    """
    node_types = {kind: types(kind) for kind in {node["class_type"] for node in prompt.values()}}

    def may_go(name: str) -> bool:
        kind = prompt[name]["class_type"]
        inputs = [(prompt[source]["class_type"], slot) for source, slot in _links(prompt[name]) if source in prompt]
        taken = [output for source, slot in inputs for output in node_types[source].gives[slot : slot + 1]]
        runs = node_types[kind].gives and any(output in _CALLED or "PIPE" in output for output in taken)
        return node_types[kind].ends and not runs and not is_of_ours(kind)

    ends, before = {name for name in prompt if may_go(name)}, None
    while ends != before:  # what only such nodes use goes with them
        before = ends
        ends = ends - {source for name, node in prompt.items() if name not in ends for source, _ in _links(node)}
    links = dict.fromkeys(
        link for name in prompt if name in ends for link in _links(prompt[name]) if link[0] not in ends
    )
    sinks = {f"onegraph end {n}": {"class_type": _SINK, "inputs": {"source": [*link]}} for n, link in enumerate(links)}
    return {name: node for name, node in prompt.items() if name not in ends} | sinks


def shortened(prompt: Prompt, mode: Mode, size: str, types: Callable[[str], NodeType]) -> Prompt:
    """Make a workflow short: two steps of each sampler, nothing saved, no graph compiled by `explain`."""
    prompt = copy.deepcopy(prompt)
    for node in prompt.values():
        kind, inputs = node["class_type"], node.setdefault("inputs", {})
        for name in ("seed", "noise_seed"):  # a server runs nothing anew that is as it was
            if isinstance(inputs.get(name), int):
                inputs[name] = random.randrange(2**32)
        if isinstance(inputs.get("steps"), int):
            inputs["steps"] = min(inputs["steps"], STEPS)
        if kind == "KSamplerAdvanced":  # each samples, also one that was to go on where another stops
            inputs |= {"start_at_step": 0, "end_at_step": 10000}
        elif kind == "SplitSigmas":
            inputs["step"] = 1
        elif kind.startswith("TextGenerate") and isinstance(inputs.get("max_length"), int):
            inputs["max_length"] = min(inputs["max_length"], _TOKENS)
        elif kind.startswith(_OURS):
            inputs["when_missing"] = "eager" if mode == "explain" else "wait"
        if size and kind.startswith("Empty") and isinstance(inputs.get("width"), int):
            inputs["width"], inputs["height"] = (int(side) for side in size.split("x"))
    return _without_ends(prompt, types)


def is_of_ours(kind: str) -> bool:
    """Tell whether nodes of a type run graphs."""
    return kind.startswith((*_OURS, *_ONEDIFFS))


def nodes_of_ours(prompt: Prompt) -> list[str]:
    """Return the nodes of a workflow that run graphs."""
    return [name for name, node in prompt.items() if is_of_ours(node["class_type"])]


def run_until_nothing_compiles(server: Server, mode: Mode, prompt: Prompt, size: str, tell: Tell) -> None:
    """Run a workflow in its short form, and tell what its nodes did. Raises JobError and what the server raises."""
    for number in range(1, MOST_ROUNDS + 1):
        before = server.status()["compiles"]
        tell("running", size=size, round=number)
        prompt_id = server.queue(shortened(prompt, mode, size, server.node_type))
        try:
            status = _follow(server, prompt_id, tell)
        except BaseException:
            server.stop(prompt_id)
            raise
        compiled = status["compiles"] - before
        if not compiled or mode == "explain":
            break
        tell("compiled", size=size, compiles=compiled)
    tell("ran", size=size, compiles=compiled, runs=_runs(status, prompt_id))


def _runs(status: dict[str, Any], prompt_id: str) -> dict[str, Any]:
    """The runs of this prompt: a server that ran others knows those of their nodes, which may have the same ids."""
    return {node: runs for node, runs in status["all_runs"].items() if status["prompts"].get(node) == prompt_id}


def _follow(server: Server, prompt_id: str, tell: Tell) -> dict[str, Any]:
    """Wait until a workflow has ended, and what it left to compile, too; the status then. Raises JobError."""
    while True:
        status = server.status()
        ended = server.result(prompt_id)
        if status["compiling"]:
            tell("compiling", compiles=status["compiling"])
        waits = status["compiling"] or status["background_compiles"] or status["deferred_compiles"]
        if ended is not None and ended.get("status_str") != "success":
            raise JobError(f"The workflow failed: {_failure(ended)}")
        if ended is not None and not waits:
            return server.status()
        time.sleep(_PAUSE)


def _failure(ended: dict[str, Any]) -> str:
    for name, data in ended.get("messages") or ():
        if name == "execution_error":
            return f"node {data.get('node_id')} ({data.get('node_type')}): {str(data.get('exception_message')).strip()}"
        if name == "execution_interrupted":
            return "it was interrupted"
    return str(ended.get("status_str"))


def refusal_text(answer: bytes | str, status: int) -> str:
    """Read why ComfyUI refuses a workflow from its answer. `status`: of HTTP."""
    with contextlib.suppress(ValueError, AttributeError, TypeError, KeyError):
        data = json.loads(answer)
        texts = [str(data["error"].get("message"))]
        for node, node_error in (data.get("node_errors") or {}).items():
            texts += [
                f"node {node} ({node_error.get('class_type')}): {e.get('message')}, {e.get('details')}"
                for e in node_error["errors"]
            ]
        return "; ".join(texts)
    return f"HTTP {status}"
