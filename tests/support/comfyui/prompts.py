"""Nodes of prompts, and prompts that are the same but for the ids of theirs."""

from __future__ import annotations

from typing import Any


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def computed(prompt: dict[str, Any]) -> list[tuple[str, str]]:
    """What a prompt computes, whatever its nodes' ids are: types of nodes, each with its values and the types that give
    it others, sorted."""

    def told(value: Any) -> str:
        is_link = isinstance(value, list) and len(value) == 2 and value[0] in prompt
        return f"{prompt[value[0]]['class_type']} {value[1]}" if is_link else repr(value)

    return sorted(
        (node["class_type"], str(sorted((name, told(value)) for name, value in node["inputs"].items())))
        for node in prompt.values()
    )
