"""Workflows made with OneDiff, through the real server: they load, run, and give the image of the plain workflow.

tests/onediff_workflows has the nodes, links and widget values of OneDiff's published ones, in the form in which each
was published; docs/onediff.md names those. Text and image encoders are replaced, because the small models have none.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from headless import models, server, workflows
from support.comfyui import controlnet, ui_workflow
from support.comfyui.shared_graphs import SharedGraphs

from .conftest import difference

FOLDER = Path(__file__).parents[1] / "onediff_workflows"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
# OneDiff's nodes: ComfyUI's own in their place, or the input that takes their output's place.
LOADERS = {"OneDiffCheckpointLoaderSimple": "CheckpointLoaderSimple", "OneDiffControlNetLoader": "ControlNetLoader"}
PASSED = {"ModelSpeedup": "model", "SVDSpeedup": "model", "VaeSpeedup": "vae"}
REMOVED = ("ModelGraphSaver", "OneDiffModelBooster", "OneDiffOnlineQuantizationBooster", "OneDiffNexfortBooster")


@pytest.fixture(scope="module")
def running(
    running: server.Server, base: Path, environment: dict[str, str], shared_graphs: SharedGraphs
) -> server.Server:
    folder = base / "models"
    models.write_checkpoint("tiny_sdxl", folder / "checkpoints/onediff_base.safetensors", seed=1)
    models.write_checkpoint("tiny_svd", folder / "checkpoints/tiny_svd.safetensors", seed=1, vae="both")
    shared_graphs.give(Path(environment["ONEGRAPH_HOME"]), folder / "checkpoints/tiny_svd.safetensors", "svd")
    models.write_lora("tiny_sdxl", folder / "loras/second_lora.safetensors", seed=4)
    controlnet.write_controlnet("tiny_sdxl", folder / "controlnet/tiny_controlnet.safetensors")
    write_hint(base / "input/hint.png")
    return running


def write_hint(path: Path) -> None:
    """Write a picture for a ControlNet to follow."""
    import numpy as np
    from PIL import Image

    Image.fromarray(np.random.default_rng(1).integers(0, 255, (16, 16, 3), np.uint8)).resize((128, 128)).save(path)


def load(name: str, object_info: dict[str, Any]) -> workflows.Prompt:
    """The API prompt of one of OneDiff's workflows, with encoders that need no model."""
    found = json.loads((FOLDER / f"{name}.json").read_text())
    prompt = workflows.without_text_encoder(ui_workflow.to_api(found, object_info) if "nodes" in found else found)
    for loader in workflows.nodes(prompt, "ImageOnlyCheckpointLoader"):
        prompt["vision"] = {"class_type": "OneGraphTestClipVision", "inputs": {}}
        prompt = workflows.rewired(prompt, [loader, 1], ["vision", 0])
    return prompt


def plain(prompt: workflows.Prompt) -> workflows.Prompt:
    """The workflow without any of OneDiff's nodes."""
    changed = copy.deepcopy(prompt)
    for node, value in prompt.items():
        kind = value["class_type"]
        if kind in PASSED:
            changed = workflows.rewired(changed, [node, 0], changed.pop(node)["inputs"][PASSED[kind]])
        elif kind in REMOVED:
            del changed[node]
        elif kind in LOADERS:
            changed[node]["class_type"] = LOADERS[kind]
            for name in ("vae_speedup", "custom_booster"):
                changed[node]["inputs"].pop(name, None)
    return changed


@pytest.fixture(scope="module")
def object_info(running: server.Server) -> dict[str, Any]:
    found: dict[str, Any] = running.get("/object_info")
    return found


def test_the_server_lists_the_nodes_as_deprecated(object_info: dict[str, Any]) -> None:
    listed = {name: found for name, found in object_info.items() if found["category"] == "model/onegraph/onediff"}
    assert {*LOADERS, *PASSED, *REMOVED} <= {*listed}
    assert all(found["deprecated"] for found in listed.values())


# Calls of the UNets and of VAE decoders that were asked to run compiled: (compiled, eager by code).
EXPECTED: dict[str, tuple[int, dict[str, int]]] = {
    "txt2img": (3, {}),
    "quant": (3, {}),
    "lora": (3, {}),
    "nexfort": (4, {}),  # three steps and a decode
    "graph_saver": (3, {}),
    "control_lora": (3, {}),  # of the ControlNet: the workflow compiles nothing else
    "text_to_video": (6, {}),  # guidance is two videos, one after the other
}


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_of_onediff_gives_the_plain_image(
    name: str, running: server.Server, object_info: dict[str, Any]
) -> None:
    prompt = load(name, object_info)
    for node in prompt.values():
        if node["class_type"] == "SaveAnimatedWEBP":  # else a step of 8 bits becomes several
            node["inputs"] |= {"lossless": True}
    expected = running.run(plain(prompt))
    assert expected.status == "success", expected.error
    before = running.status()
    result = running.run(prompt)
    after = running.status()
    assert result.status == "success", result.error
    assert difference(expected, result) <= 2
    compiled = after["compiled_calls"] - before["compiled_calls"]
    eager = Counter(after["codes"]) - Counter(before["codes"])
    assert (compiled, dict(eager)) == EXPECTED[name], after["said"]
    for node, value in prompt.items():
        if value["class_type"] in (*LOADERS, *PASSED, *REMOVED) and value["class_type"] != "OneDiffModelBooster":
            assert result.text(node), value["class_type"]
