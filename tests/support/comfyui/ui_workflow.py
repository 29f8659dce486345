"""Workflows in the form that ComfyUI's frontend saves, as API prompts: what the frontend does when it queues one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
NORMAL = 0  # a node's mode; others are muted or bypassed


def widgets(info: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and options of a node's widgets, in the order in which their values are saved.

    Args:
        info: the node's part of /object_info.
    """
    for section in ("required", "optional"):
        given = info["input"].get(section, {})
        for name in info["input_order"].get(section, ()):
            kind, *rest = given[name]
            options: dict[str, Any] = rest[0] if rest else {}
            if (isinstance(kind, list) or kind in WIDGETS) and not options.get("forceInput"):
                choices = kind if isinstance(kind, list) else options.get("options")
                yield name, {**options, **({"options": choices} if choices else {})}


def default(options: Mapping[str, Any]) -> Any:
    """The value of a widget for which none was saved."""
    return options["default"] if "default" in options else next(iter(options.get("options", ())), None)


def to_api(ui: Mapping[str, Any], object_info: Mapping[str, Any]) -> dict[str, Any]:
    """The API prompt of a saved workflow. Raises KeyError for a node that the server does not know."""
    links = {link[0]: [str(link[1]), link[2]] for link in ui["links"]}
    prompt: dict[str, Any] = {}
    for node in ui["nodes"]:
        assert node.get("mode", NORMAL) == NORMAL, "muted and bypassed nodes are not converted"
        info, saved, inputs = object_info[node["type"]], iter(node.get("widgets_values") or []), {}
        for name, options in widgets(info):
            inputs[name] = next(saved, default(options))
            if options.get("control_after_generate") or options.get("image_upload"):
                next(saved, None)  # a widget of the frontend's own: what becomes of the seed, the upload button
        inputs |= {i["name"]: links[i["link"]] for i in node.get("inputs", []) if i.get("link") is not None}
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return prompt


def content(blueprint: Mapping[str, Any]) -> dict[str, Any]:
    """What a subgraph blueprint holds, as a saved workflow: its inputs keep the values that the nodes inside have."""
    (subgraph,) = blueprint["definitions"]["subgraphs"]
    outside = {subgraph["inputNode"]["id"], subgraph["outputNode"]["id"]}
    inside = [link for link in subgraph["links"] if not outside & {link["origin_id"], link["target_id"]}]
    kept = {link["id"] for link in inside}
    nodes = [
        {**node, "inputs": [{**i, "link": i["link"] if i["link"] in kept else None} for i in node["inputs"]]}
        for node in subgraph["nodes"]
    ]
    fields = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    return {"nodes": nodes, "links": [[link[field] for field in fields] for link in inside]}
