"""Templates: small models of their families run by them, and the server takes all of them as they are."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from headless import host, server, workflows
from support.comfyui.installation import environment_of

from .conftest import difference

SIDE, FRAMES, STEPS = 64, 9, 4
VAES = {"flux": "flux", "z_image": "flux", "qwen_image": "wan 2.1", "wan": "wan 2.1", "ltx": "ltx"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Server]:
    """A server whose files of models are empty, under the names that templates have."""
    base = server.prepare_base(tmp_path_factory.mktemp("templates"))
    for name in workflows.names():
        for node in json.loads(workflows.template(name).read_text())["nodes"]:
            for model in node["properties"].get("models", []):
                file = base / "models" / model["directory"] / model["name"]
                file.parent.mkdir(exist_ok=True)
                file.touch()
    (base / "input" / "example.png").touch()
    with server.running(base, host.comfyui_path(), env=environment_of(base / "home")) as started:
        yield started


@pytest.mark.parametrize("name", workflows.names())
def test_the_server_takes_a_template_as_it_is(name: str, running: server.Server) -> None:
    answer = running.post("/prompt", {"prompt": workflows.load(name)})
    assert answer["node_errors"] == {}
    running.post("/queue", {"clear": True})
    running.post("/interrupt", {})


def small(name: str) -> workflows.Prompt:
    """tests/workflows/<name> with small models, without a text encoder and without sound, its images saved."""
    prompt, family = copy.deepcopy(workflows.load(name)), workflows.cases(name)["family"]
    sides = {"width": SIDE, "height": SIDE}

    def put(node: str, test_class: str, **inputs: Any) -> None:
        prompt[node] = {"class_type": f"OneGraphTest{test_class}", "inputs": inputs}

    put("vae", "SmallVAE", name=VAES[name])
    for number, (node, one) in enumerate([*prompt.items()]):
        inputs = one["inputs"]
        match one["class_type"]:
            case "CheckpointLoaderSimple" | "UNETLoader":
                put(node, "LoadTransformer", family=family, seed=number)
            case "CLIPTextEncode":
                put(node, "TransformerText", family=family, text=inputs["text"], **sides)
            case "LTXVEmptyLatentAudio":
                put(node, "TransformerAudio", family=family)
            case "OneGraphCompileVAE":
                inputs["vae"] = ["vae", 0]
            case "SaveVideo":
                (decode,) = workflows.nodes(prompt, "VAEDecode")
                prompt[node] = {"class_type": "SaveImage", "inputs": {"images": [decode, 0], "filename_prefix": name}}
            case _:
                fewer = {**sides, "length": FRAMES, "steps": STEPS}
                inputs.update({key: value for key, value in fewer.items() if key in inputs})
                for key in {"start_at_step", "end_at_step"} & {*inputs}:
                    inputs[key] = min(inputs[key] // 5, STEPS)
    return prompt


@pytest.mark.parametrize(
    "name", ["z_image", *(pytest.param(name, marks=pytest.mark.full) for name in VAES if name != "z_image")]
)
def test_a_template_runs_compiled(name: str, running: server.Server) -> None:
    """The image is that of the uncompiled models, and once compiled, nothing runs uncompiled or is compiled again."""
    prompt = small(name)
    plain, first = running.run(workflows.without_onegraph(prompt)), running.run(prompt)
    before = running.status()
    for inputs in (node["inputs"] for node in prompt.values()):
        inputs.update({key: 2 for key in {"seed", "noise_seed"} & {*inputs} if "family" not in inputs})
    again = running.run(prompt)
    after = running.status()
    assert [one.status for one in (plain, first, again)] == ["success"] * 3, [plain.error, first.error, again.error]
    assert difference(plain, first) <= workflows.cases(name)["largest_difference_255"]
    assert difference(first, again) > 10
    ours = [node for node, one in prompt.items() if one["class_type"].startswith("OneGraphCompile")]
    assert all("compiled" in again.text(node) for node in ours), again.texts
    assert (after["compiles"], after["eager_calls"]) == (before["compiles"], before["eager_calls"]), after["reasons"]
