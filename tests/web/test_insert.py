"""Compile Model put into the workflow that is open in the editor, and into files; what the tab tells of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import comfyui_workflow_templates_core
import pytest
from playwright.sync_api import expect
from support.comfyui.installation import CHECKPOINT
from support.page.browser import Front, axe_findings, too_wide

from onegraph.host.jobs import inserting

COMMAND = "OneGraph.InsertCompileModel"
COMPILES = "() => app.rootGraph.nodes.filter((node) => node.type === 'OneGraphCompileModel').length"
WHEN_MISSING = "OneGraph.Default.WhenMissing"


def template(name: str = "default") -> dict[str, Any]:
    """One of ComfyUI's own, with the layer's checkpoint."""
    folders = Path(comfyui_workflow_templates_core.__file__).parents[1].glob("comfyui_workflow_templates*/templates")
    text = next(path for folder in folders if (path := folder / f"{name}.json").is_file()).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text.replace("v1-5-pruned-emaonly-fp16.safetensors", CHECKPOINT))
    return data


def open_graph(front: Front, graph: dict[str, Any]) -> None:
    front.evaluate("(graph) => app.loadGraphData(graph)", graph)


def modified(front: Front) -> bool:
    return bool(front.evaluate("() => app.extensionManager.workflow.activeWorkflow.isModified"))


@pytest.mark.parametrize("how", ["menu", "tab"])
def test_the_open_workflow_gets_the_node_and_one_undo_takes_it_back(how: str, front: Front) -> None:
    front.set(WHEN_MISSING, "background")
    open_graph(front, template())
    before = front.evaluate("() => app.graphToPrompt().then(({output}) => output)")
    if how == "menu":
        front.command(COMMAND)
    else:
        front.page.get_by_role("tab", name="Workflow").click()
        front.page.locator("[data-action=insert]").click()
    front.toast("After node 4 (CheckpointLoaderSimple).")
    after = front.evaluate("() => app.graphToPrompt().then(({output}) => output)")
    ((key, node),) = ((key, one) for key, one in after.items() if one["class_type"] == "OneGraphCompileModel")
    inputs = {"model": ["4", 0], "backend": "auto", "shapes": "any size", "when_missing": "background"}
    assert node["inputs"].items() >= inputs.items()
    assert after["3"]["inputs"]["model"] == [key, 0]
    assert {name: one for name, one in after.items() if name not in (key, "3")} == {
        name: one for name, one in before.items() if name != "3"
    }
    assert modified(front)
    front.command(COMMAND)
    front.toast("The workflow has a node of OneGraph, or none that loads a model.")
    assert front.evaluate(COMPILES) == 1
    front.command("Comfy.Undo")
    front.page.wait_for_function(f"() => ({COMPILES})() === 0")
    assert front.evaluate("() => app.graphToPrompt().then(({output}) => output)") == before
    front.set(WHEN_MISSING, "wait")


def test_a_workflow_with_subgraphs(front: Front) -> None:
    """What the front end then queues goes through the node."""
    open_graph(front, template("image_z_image_turbo"))
    front.command(COMMAND)
    front.toast("Compile Model inserted")
    output = front.evaluate("() => app.graphToPrompt().then(({output}) => output)")
    ((key, node),) = ((key, one) for key, one in output.items() if one["class_type"] == "OneGraphCompileModel")
    assert output[node["inputs"]["model"][0]]["class_type"] == "UNETLoader"
    assert [one["class_type"] for one in output.values() if [key, 0] in one["inputs"].values()]


def test_files_are_downloaded_with_the_node(front: Front, tmp_path: Path) -> None:
    front.page.get_by_role("tab", name="Workflow").click()
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(template()))
    with front.page.expect_download() as downloading:
        front.page.locator(".og-drop input").set_input_files(file)
    assert downloading.value.suggested_filename == "mine.onegraph.json"
    made, _ = inserting.inserted(template(), "mine")
    assert json.loads(Path(downloading.value.path()).read_text()) == made
    with front.page.expect_download() as downloading:
        drop(front, "dropped.json", json.dumps(template()))
    assert downloading.value.suggested_filename == "dropped.onegraph.json"
    for text in ("no JSON", "{}", "null"):
        drop(front, "other.json", text)
        front.toast("The file is not a workflow that ComfyUI's editor saved.")


def drop(front: Front, name: str, text: str) -> None:
    front.evaluate(
        """([name, text]) => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([text], name, {type: 'application/json'}));
          const event = new DragEvent('drop', {dataTransfer, bubbles: true, cancelable: true});
          document.querySelector('.og-drop').dispatchEvent(event);
        }""",
        [name, text],
    )


def test_the_models_of_the_open_workflow(front: Front) -> None:
    open_graph(front, template())
    front.page.get_by_role("tab", name="Workflow").click()
    model = front.page.locator(".og-models-list li")
    expect(model).to_have_count(1)
    for text in (CHECKPOINT, "OneGraphTinySDXL · float16", "Graphs here"):
        expect(model).to_contain_text(text)
    expect(front.page.locator(".og-workflow")).to_contain_text(
        "with Compile Model after node 4 (CheckpointLoaderSimple)"
    )
    open_graph(front, template("image_z_image_turbo"))
    expect(model).to_contain_text("z_image_turbo")
    expect(model).to_contain_text("Not known")
    expect(front.page.locator(".og-workflow")).to_contain_text("3 files or choices are not in this ComfyUI")
    assert (axe_findings(front.page, ".og-tab"), too_wide(front.page, ".og-tab")) == ([], [])
    open_graph(front, {"nodes": [], "links": [], "version": 0.4})
    expect(front.page.locator(".og-workflow")).to_contain_text("has no node that saves or shows anything")
    expect(model).to_have_count(0)
