"""example_workflows (what ComfyUI offers as templates) and tests/workflows (what is tested) are the same workflows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headless import workflows

EXAMPLES = Path(__file__).parents[2] / "example_workflows"
NAMES = workflows.names()
_UI_ONLY = {"fixed", "image"}  # control_after_generate; the upload button of Load Image


def test_templates_and_tested_workflows_are_the_same() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.json")) == [f"onegraph_{name}" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_the_template_is_the_tested_workflow(name: str) -> None:
    ui: dict[str, Any] = json.loads((EXAMPLES / f"onegraph_{name}.json").read_text())
    api = workflows.load(name)
    links = {link[0]: [str(link[1]), link[2]] for link in ui["links"]}
    assert {str(n["id"]): n["type"] for n in ui["nodes"]} == {k: v["class_type"] for k, v in api.items()}
    for node in ui["nodes"]:
        inputs = api[str(node["id"])]["inputs"]
        wired = {i["name"]: links[i["link"]] for i in node["inputs"] if i.get("link") is not None}
        assert wired == {k: v for k, v in inputs.items() if isinstance(v, list)}
        widgets = [v for v in node.get("widgets_values", []) if v not in _UI_ONLY]
        assert widgets == [v for v in inputs.values() if not isinstance(v, list)]


@pytest.mark.parametrize("name", NAMES)
def test_links_join_the_nodes_they_name(name: str) -> None:
    ui: dict[str, Any] = json.loads((EXAMPLES / f"onegraph_{name}.json").read_text())
    nodes = {node["id"]: node for node in ui["nodes"]}
    assert len(ui["links"]) >= len(nodes) - 1
    for link, source, slot, target, place, kind in ui["links"]:
        output, taken = nodes[source]["outputs"][slot], nodes[target]["inputs"][place]
        assert link in output["links"] and taken["link"] == link
        assert output["type"] == kind
