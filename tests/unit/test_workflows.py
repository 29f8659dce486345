"""example_workflows (what ComfyUI offers as templates) and tests/workflows (what is tested) are the same workflows."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import thumbnails
from headless import workflows
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "example_workflows"
SUBGRAPHS = Path(__file__).parents[2] / "subgraphs"
NAMES = workflows.names()
_UI_ONLY = {"fixed", "randomize", "image"}  # control_after_generate; the upload button of Load Image
FOLDERS = {
    "CheckpointLoaderSimple": {"checkpoints"},
    "UNETLoader": {"diffusion_models"},
    "CLIPLoader": {"text_encoders"},
    "VAELoader": {"vae"},
    "ControlNetLoader": {"controlnet"},
    "LTXAVTextEncoderLoader": {"text_encoders", "checkpoints"},
    "LTXVAudioVAELoader": {"checkpoints"},
}


def test_templates_and_tested_workflows_are_the_same() -> None:
    assert {*EXAMPLES.glob("*.json")} == {workflows.template(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_template_is_the_tested_workflow(name: str) -> None:
    ui: dict[str, Any] = json.loads(workflows.template(name).read_text())
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
    ui: dict[str, Any] = json.loads(workflows.template(name).read_text())
    nodes = {node["id"]: node for node in ui["nodes"]}
    assert len(ui["links"]) >= len(nodes) - 1
    for link, source, slot, target, place, kind in ui["links"]:
        output, taken = nodes[source]["outputs"][slot], nodes[target]["inputs"][place]
        assert link in output["links"] and taken["link"] == link
        assert output["type"] == kind


@pytest.mark.parametrize("name", NAMES)
def test_a_template_says_where_its_models_are(name: str) -> None:
    """ComfyUI offers to download what is missing, by these entries of its loaders."""
    loaders = 0
    for node in json.loads(workflows.template(name).read_text())["nodes"]:
        models = node["properties"].get("models", [])
        files = {v for v in node.get("widgets_values", []) if str(v).endswith(".safetensors")}
        assert {one["name"] for one in models} == files
        assert {one["directory"] for one in models} == FOLDERS.get(node["type"], set())
        for one in models:
            assert one["url"].startswith("https://huggingface.co/") and "/resolve/main/" in one["url"]
        loaders += len(models)
    assert loaders


@pytest.mark.parametrize("name", NAMES)
def test_a_template_has_its_picture(name: str) -> None:
    """ComfyUI asks for <title>.jpg; tools/thumbnails.py draws it from the template."""
    file = workflows.template(name).with_suffix(".jpg")
    assert file.stat().st_size < 60_000
    drawn = thumbnails.thumbnail(file.with_suffix(".json"))
    one, other = (np.asarray(Image.open(io.BytesIO(jpeg))).astype(int) for jpeg in (file.read_bytes(), drawn))
    assert one.shape == other.shape
    assert np.abs(one - other).mean() < 1.0  # versions of Pillow smooth a little differently


def test_the_blueprint_joins_what_it_names() -> None:
    """Links, their ends, the inputs outside and the widgets that the subgraph's node shows."""
    (file,) = SUBGRAPHS.glob("*.json")
    blueprint = json.loads(file.read_text())
    (subgraph,), (node,) = blueprint["definitions"]["subgraphs"], blueprint["nodes"]
    assert node["type"] == subgraph["id"] and node["title"] == subgraph["name"] == file.stem
    inside = {inner["id"]: inner for inner in subgraph["nodes"]}
    ends = {subgraph["inputNode"]["id"]: subgraph["inputs"], subgraph["outputNode"]["id"]: subgraph["outputs"]}
    for link in subgraph["links"]:
        source, slot, target, place = (link[k] for k in ("origin_id", "origin_slot", "target_id", "target_slot"))
        output = ends[source][slot] if source in ends else inside[source]["outputs"][slot]
        taken = ends[target][place] if target in ends else inside[target]["inputs"][place]
        assert link["id"] in output["linkIds" if source in ends else "links"]
        assert link["id"] in taken["linkIds"] if target in ends else link["id"] == taken["link"]
        assert output["type"] == taken["type"] == link["type"]
    linked = [i["link"] for inner in inside.values() for i in inner["inputs"] if i["link"] is not None]
    assert sorted(linked) == sorted(link["id"] for link in subgraph["links"] if link["target_id"] in inside)
    assert [(i["name"], i["type"]) for i in node["inputs"]] == [(i["name"], i["type"]) for i in subgraph["inputs"]]
    for inner, widget in node["properties"]["proxyWidgets"]:
        assert widget in [i["name"] for i in inside[int(inner)]["inputs"]]
