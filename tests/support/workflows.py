"""Workflows in tests/workflows as API prompts, and the changes tests and the demo make to them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "workflows"
Prompt = dict[str, Any]


def load(name: str) -> Prompt:
    """The API prompt of tests/workflows/<name>."""
    prompt: Prompt = json.loads((FOLDER / name / "api.json").read_text())
    return prompt


def nodes(prompt: Prompt, class_type: str) -> list[str]:
    """Ids of the nodes of a class."""
    return [node for node, value in prompt.items() if value["class_type"] == class_type]


def with_inputs(prompt: Prompt, class_type: str, **inputs: Any) -> Prompt:
    """The prompt with inputs of every node of a class replaced. Raises KeyError when there is none."""
    changed = copy.deepcopy(prompt)
    found = nodes(changed, class_type)
    if not found:
        raise KeyError(class_type)
    for node in found:
        changed[node]["inputs"].update(inputs)
    return changed


def without_text_encoder(prompt: Prompt, width: int = 2048) -> Prompt:
    """For checkpoints that carry no text encoder: the test node encodes the same texts."""
    changed = copy.deepcopy(prompt)
    for node in nodes(changed, "CLIPTextEncode"):
        text = changed[node]["inputs"]["text"]
        changed[node] = {"class_type": "OneGraphTestTextEncode", "inputs": {"text": text, "width": width}}
    return changed


def without_onegraph(prompt: Prompt) -> Prompt:
    """The same workflow with every OneGraph node taken out and its input wired through."""
    changed = copy.deepcopy(prompt)
    for node in nodes(changed, "OneGraphCompileModel"):
        source = changed[node]["inputs"]["model"]
        del changed[node]
        for other in changed.values():
            for name, value in other["inputs"].items():
                if value == [node, 0]:
                    other["inputs"][name] = source
    return changed
