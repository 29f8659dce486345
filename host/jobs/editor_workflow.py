"""A workflow as ComfyUI's editor saves it, made a prompt: what the front end does when it queues one.

Subgraphs are taken apart, muted and bypassed nodes left out, links followed through reroutes, primitive nodes, and the
get and set nodes of KJNodes; values of widgets have no names there, so that they are told by the server's
`/object_info`. Facts of the format are read off files that the front end wrote (1.47 and before).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from .trial_runs import CannotTellError, JobError, Prompt, is_link

Types = Mapping[str, Mapping[str, Any]]  # as `/object_info` has them, by the names of types

_MUTED, _BYPASSED = 2, 4
_DEEPEST = 200  # links that are followed one after the other
_WIDGETS = frozenset({"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COMFY_DYNAMICCOMBO_V3"})
_CONTROLS = frozenset({"fixed", "increment", "decrement", "randomize", "increment-wrap"})
_SEEDS = ("seed", "noise_seed")
_REROUTE, _PRIMITIVE, _GET, _SET = "Reroute", "PrimitiveNode", "GetNode", "SetNode"


@dataclass(frozen=True)
class _Link:
    origin: Any  # id of a node, like the next
    slot: int
    target: Any
    target_slot: int


@dataclass(frozen=True)
class _Output:
    """An output of a node of a prompt."""

    node: str
    slot: int


@dataclass(frozen=True)
class _Value:
    """What a widget holds."""

    value: Any


@dataclass
class _Graph:
    """A workflow, or what one of its subgraph nodes stands for.

    Attributes:
        name: begin of the ids of its nodes in a prompt, as the front end makes them.
        mode: that all of its nodes have at least: 0, or muted or bypassed.
        inputs, outputs: of a subgraph; `inner_inputs` and `inner_outputs` are the ids by which links name them.
        outer: the graph that the subgraph's node is in, and that node.
    """

    name: str
    nodes: dict[Any, dict[str, Any]]
    links: dict[Any, _Link]
    mode: int = 0
    inputs: Sequence[Mapping[str, Any]] = ()
    outputs: Sequence[Mapping[str, Any]] = ()
    inner_inputs: Any = None
    inner_outputs: Any = None
    outer: tuple[_Graph, dict[str, Any]] | None = None
    inner: dict[Any, _Graph] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any], definitions: Mapping[str, Any], name: str = "", **more: Any) -> _Graph:
        graph = cls(
            name, {node["id"]: node for node in data["nodes"]}, dict(map(_link, data.get("links") or ())), **more
        )
        if name.count(":") > _DEEPEST:
            raise JobError("A subgraph of the workflow is in itself.")
        for number, node in graph.nodes.items():
            definition = definitions.get(node["type"])
            if definition is not None:
                graph.inner[number] = cls.of(
                    definition, definitions, f"{name}{number}:", mode=graph.mode_of(node),
                    inputs=definition["inputs"], outputs=definition["outputs"],
                    inner_inputs=definition["inputNode"]["id"], inner_outputs=definition["outputNode"]["id"],
                    outer=(graph, node),
                )  # fmt: skip
        return graph

    def mode_of(self, node: Mapping[str, Any]) -> int:
        return int(node.get("mode") or 0) or self.mode

    def active(self) -> Iterator[tuple[_Graph, dict[str, Any]]]:
        """Go through the nodes that run, those of subgraphs too."""
        for number, node in self.nodes.items():
            if number in self.inner:
                yield from self.inner[number].active()
            elif self.mode_of(node) not in (_MUTED, _BYPASSED):
                yield self, node

    # Links --------------------------------------------------------------------------------------------------

    def behind(self, link: Any, depth: int = 0) -> _Output | _Value | None:
        """Follow a link to what it brings; None: nothing."""
        followed = self.links.get(link)
        if followed is None or depth > _DEEPEST:
            return None
        if self.outer is not None and followed.origin == self.inner_inputs:
            return self._outer_value(followed.slot, depth)
        node = self.nodes.get(followed.origin)
        return None if node is None else self._output(node, followed.slot, depth + 1)

    def _outer_value(self, slot: int, depth: int) -> _Output | _Value | None:
        """What the subgraph's node is given for one of its inputs, or holds in a widget."""
        assert self.outer is not None
        graph, node = self.outer
        name = self.inputs[slot]["name"]
        for one in node.get("inputs") or ():
            if one["name"] == name and one.get("link") is not None:
                return graph.behind(one["link"], depth + 1)
        values, names = node.get("widgets_values") or [], self._widgets()
        if name in names and isinstance(values, list) and len(values) == len(names):
            return _Value(values[names.index(name)])
        return None

    def _widgets(self) -> list[str]:
        """The inputs of a subgraph that are widgets of a node in it, of which the subgraph's node has values."""
        slots = {
            link.slot
            for link in self.links.values()
            if link.origin == self.inner_inputs and self._is_widget(link.target, link.target_slot)
        }
        return [one["name"] for slot, one in enumerate(self.inputs) if slot in slots]

    def _is_widget(self, number: Any, slot: int) -> bool:
        inputs = self.nodes.get(number, {}).get("inputs") or ()
        if slot >= len(inputs):
            return False
        inner = self.inner.get(number)
        return bool(inputs[slot].get("widget")) or (inner is not None and inputs[slot]["name"] in inner._widgets())

    def _output(self, node: dict[str, Any], slot: int, depth: int) -> _Output | _Value | None:
        """What a node gives at an output: its own result, or what it passes on."""
        mode, kind = self.mode_of(node), node["type"]
        inner = self.inner.get(node["id"])
        if mode == _MUTED:
            return None
        if mode == _BYPASSED:
            return self._bypassed(node, slot, depth)
        if inner is not None:
            ends = (n for n, one in inner.links.items() if (one.target, one.target_slot) == (inner.inner_outputs, slot))
            return next((inner.behind(one, depth) for one in ends), None)
        if kind == _REROUTE:
            return next((self.behind(one.get("link"), depth) for one in node.get("inputs") or ()), None)
        if kind == _PRIMITIVE:
            return next(map(_Value, node.get("widgets_values") or ()), None)
        if kind == _GET:
            return self._set_as(node.get("widgets_values"), depth)
        return _Output(f"{self.name}{node['id']}", slot)

    def _bypassed(self, node: dict[str, Any], slot: int, depth: int) -> _Output | _Value | None:
        """What a bypassed node passes on: its input of the output's type, that of the same place first."""
        outputs, inputs = node.get("outputs") or [], node.get("inputs") or []
        kind = outputs[slot].get("type") if slot < len(outputs) else None
        for one in sorted(inputs, key=lambda one: inputs.index(one) != slot):
            if one.get("type") == kind and one.get("link") is not None:
                return self.behind(one["link"], depth)
        return None

    def _set_as(self, values: Any, depth: int) -> _Output | _Value | None:
        graph: _Graph | None = self
        while graph is not None:
            for node in graph.nodes.values():
                if node["type"] == _SET and values and (node.get("widgets_values") or [])[:1] == values[:1]:
                    return next((graph.behind(one.get("link"), depth) for one in node.get("inputs") or ()), None)
            graph = graph.outer[0] if graph.outer is not None else None
        return None


def _link(data: Any) -> tuple[Any, _Link]:
    if isinstance(data, dict):
        return data["id"], _Link(data["origin_id"], data["origin_slot"], data["target_id"], data["target_slot"])
    number, origin, slot, target, target_slot, *_ = data
    return number, _Link(origin, slot, target, target_slot)


# Widgets ----------------------------------------------------------------------------------------------------


def inputs_of(kind: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a type of node by name, in the order of its widgets."""
    groups = kind.get("input") or {}
    order = kind.get("input_order") or {}
    made: dict[str, Any] = {}
    for group in ("required", "optional"):
        inputs = groups.get(group) or {}
        made |= {name: inputs[name] for name in (*order.get(group, ()), *inputs) if name in inputs}
    return made


def _is_widget(described: Any) -> bool:
    kind, options = described_as(described)
    own = options.get("socketless") or options.get("widgetType")
    return bool(isinstance(kind, list) or kind in _WIDGETS or own) and not options.get("forceInput")


def described_as(described: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the type of an input, or its choices, and its options."""
    kind = described[0] if described else None
    return kind, described[1] if len(described) > 1 and isinstance(described[1], dict) else {}


def _widget_values(node: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a node's widgets by name."""
    values = node.get("widgets_values")
    if isinstance(values, dict):
        return {name: values[name] for name in inputs if name in values}
    shown = {one["name"] for one in node.get("inputs") or () if one.get("widget")}
    left = [*(values or ())]
    named: dict[str, Any] = {}

    def take(name: str, described: Any) -> None:
        kind, options = described_as(described)
        if not (_is_widget(described) or name in shown):
            return
        if not left:  # it was saved before the node had that widget
            named.update(default_of(name, described))
            return
        value = named[name] = left.pop(0)
        controlled = options.get("control_after_generate") or (kind == "INT" and name in _SEEDS)
        if controlled and left and isinstance(left[0], str) and left[0] in _CONTROLS:
            left.pop(0)
        if kind == "COMFY_DYNAMICCOMBO_V3":
            for option in (one for one in options.get("options") or () if one.get("key") == value):
                for inner, one in inputs_of({"input": option.get("inputs")}).items():
                    take(f"{name}.{inner}", one)

    for name, described in inputs.items():
        take(name, described)
    return named


def default_of(name: str, described: Any) -> dict[str, Any]:
    """Return what a widget holds at first, by its name; nothing where the server does not tell.

    >>> default_of("steps", ["INT", {"default": 20}]), default_of("sampler_name", [["euler", "heun"]])
    ({'steps': 20}, {'sampler_name': 'euler'})
    """
    kind, options = described_as(described)
    choices = kind if isinstance(kind, list) else options.get("options")
    if "default" in options:
        return {name: options["default"]}
    return {name: choices[0]} if choices and isinstance(choices, list) and isinstance(choices[0], str) else {}


# Prompts ----------------------------------------------------------------------------------------------------


def is_editors(data: Any) -> bool:
    """Tell whether JSON is a workflow in the editor's format."""
    return isinstance(data, dict) and isinstance(data.get("nodes"), list)


def prompt_of(data: Mapping[str, Any], types: Types, name: str) -> Prompt:
    """Make a prompt of what runs in a workflow, and of that what something that is saved or shown needs.

    Args:
        types: as `/object_info` tells them.
        name: of the workflow's file, for errors.

    Raises:
        JobError: it cannot be read, or needs a type of node that the server does not have.
    """
    try:
        definitions = {one["id"]: one for one in (data.get("definitions") or {}).get("subgraphs") or ()}
        graph = _Graph.of(data, definitions)
        running = {f"{inside.name}{node['id']}": (inside, node) for inside, node in graph.active()}
        wanted = [key for key, (_, node) in running.items() if types.get(node["type"], {}).get("output_node")]
        prompt: Prompt = {}
        while wanted:
            key = wanted.pop()
            if key in prompt or key not in running:
                continue
            inside, node = running[key]
            if node["type"] not in types:
                raise CannotTellError(
                    f"Node {key} is of type {node['type']}, which this ComfyUI does not have. Update ComfyUI, or "
                    "install the custom node that it comes from."
                )
            prompt[key] = _prompt_node(inside, node, types[node["type"]])
            wanted += [value[0] for value in prompt[key]["inputs"].values() if is_link(value)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise JobError(f"{name} is no workflow that can be read ({type(error).__name__}: {error}).") from error
    if not prompt:
        raise CannotTellError(f"{name} has no node that saves or shows anything, so ComfyUI would run nothing of it.")
    return {key: prompt[key] for key in running if key in prompt}


def _prompt_node(graph: _Graph, node: dict[str, Any], kind: Mapping[str, Any]) -> dict[str, Any]:
    """A node of a prompt: the values of its widgets, and its links."""
    inputs = _widget_values(node, inputs_of(kind))
    for one in node.get("inputs") or ():
        if one.get("link") is None:
            continue
        source = graph.behind(one["link"])
        if isinstance(source, _Output):
            inputs[one["name"]] = [source.node, source.slot]
        elif source is not None:
            inputs[one["name"]] = source.value
    return {"class_type": node["type"], "inputs": inputs}


def lacking(prompt: Prompt, types: Types) -> list[str]:
    """Tell which files, or other choices, a prompt names that the server does not have."""
    texts = []
    for key, node in prompt.items():
        for name, described in inputs_of(types.get(node["class_type"], {})).items():
            kind, options = described_as(described)
            choices = kind if isinstance(kind, list) else options.get("options") if kind == "COMBO" else None
            value = node["inputs"].get(name)
            if not isinstance(choices, list) or not isinstance(value, str) or value in choices:
                continue
            if choices or PurePath(value).suffix:  # without any: other choices may be the workflow's own
                texts.append(f"node {key} ({node['class_type']}) needs {value}")
    return texts
