"""Workflows in tests/workflows as API prompts, and the changes tests and the demo make to them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "workflows"
Prompt = dict[str, Any]
PICTURE = {"width": 64, "height": 64, "batch_size": 1, "color": 0x30A0F0}  # of one colour, for a ControlNet


def names() -> list[str]:
    """The names of the workflows in tests/workflows."""
    return sorted(file.parent.name for file in FOLDER.glob("*/api.json"))


def load(name: str) -> Prompt:
    """The API prompt of tests/workflows/<name>."""
    prompt: Prompt = json.loads((FOLDER / name / "api.json").read_text())
    return prompt


def cases(name: str) -> dict[str, Any]:
    """What is expected of tests/workflows/<name>."""
    found: dict[str, Any] = json.loads((FOLDER / name / "cases.json").read_text())
    return found


def template(name: str) -> Path:
    """The same workflow as ComfyUI offers it; the file's name is the title that users read."""
    return ROOT / "example_workflows" / f"{cases(name)['title']}.json"


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


def rewired(prompt: Prompt, old: list[Any], new: list[Any]) -> Prompt:
    """The prompt with every use of one output, [node, slot], replaced by another."""
    changed = copy.deepcopy(prompt)
    for node in changed.values():
        node["inputs"] = {name: new if value == old else value for name, value in node["inputs"].items()}
    return changed


def with_lora(prompt: Prompt, lora: str, strength: float) -> Prompt:
    """The prompt with a LoRA, node `lora`, between its one checkpoint loader and whatever takes the MODEL of that."""
    (loader,) = nodes(prompt, "CheckpointLoaderSimple")
    changed = rewired(prompt, [loader, 0], ["lora", 0])
    inputs = {"model": [loader, 0], "lora_name": lora, "strength_model": strength}
    changed["lora"] = {"class_type": "LoraLoaderModelOnly", "inputs": inputs}
    return changed


def with_compiled_vae(prompt: Prompt, **choices: Any) -> Prompt:
    """The prompt with Compile VAE (OneGraph) behind its one checkpoint loader; its node: `vae`."""
    (loader,) = nodes(prompt, "CheckpointLoaderSimple")
    changed = rewired(prompt, [loader, 2], ["vae", 0])
    inputs = {"parts": "decoder", "dynamic_resolution": "auto", "when_missing": "wait", "backend": "auto", **choices}
    changed["vae"] = {"class_type": "OneGraphCompileVAE", "inputs": {"vae": [loader, 2], **inputs}}
    return changed


def with_controlnet(prompt: Prompt, file: str, node: str = "net", **applied: Any) -> Prompt:
    """The prompt with a ControlNet that steers its one sampler, run by Compile ControlNet (OneGraph), its node `node`.

    Args:
        applied: inputs of ControlNetApplyAdvanced.
    """
    changed = copy.deepcopy(prompt)
    (sampler,) = nodes(changed, "KSampler")
    taken = changed[sampler]["inputs"]
    loader, picture, apply = f"{node}_loader", f"{node}_picture", f"{node}_apply"
    changed[loader] = {"class_type": "ControlNetLoader", "inputs": {"control_net_name": file}}
    choices = {"backend": "auto", "shapes": "any size", "when_missing": "wait"}
    changed[node] = {"class_type": "OneGraphCompileControlNet", "inputs": {"control_net": [loader, 0], **choices}}
    changed[picture] = {"class_type": "EmptyImage", "inputs": PICTURE}
    inputs = {
        "control_net": [node, 0],
        "image": [picture, 0],
        "strength": 1.0,
        "start_percent": 0.0,
        "end_percent": 1.0,
    }
    conditioning = {name: taken[name] for name in ("positive", "negative")}
    changed[apply] = {"class_type": "ControlNetApplyAdvanced", "inputs": {**conditioning, **inputs, **applied}}
    taken.update(positive=[apply, 0], negative=[apply, 1])
    return changed


def without_onegraph(prompt: Prompt) -> Prompt:
    """The same workflow with every OneGraph node taken out and its input wired through."""
    changed = copy.deepcopy(prompt)
    inputs = {"Model": "model", "VAE": "vae", "ControlNet": "control_net", "CLIP": "clip"}
    for class_type, name in ((f"OneGraphCompile{kind}", name) for kind, name in inputs.items()):
        for node in nodes(changed, class_type):
            source = changed.pop(node)["inputs"][name]
            changed = rewired(changed, [node, 0], source)
    return changed


def loader_of(prompt: Prompt, link: list[Any]) -> str:
    """The checkpoint loader that a MODEL or CLIP output comes from."""
    node: str = link[0]
    while prompt[node]["class_type"] != "CheckpointLoaderSimple":
        node = prompt[node]["inputs"]["model"][0]
    return node


def samplers(prompt: Prompt) -> list[dict[str, Any]]:
    """The inputs of every sampler."""
    found = nodes(prompt, "KSampler") + nodes(prompt, "KSamplerAdvanced")
    return [prompt[node]["inputs"] for node in found]


def with_checkpoints(prompt: Prompt, base: str, refiner: str = "", text_encoders: bool = False) -> Prompt:
    """The workflow on these checkpoints; without `text_encoders` in them the test node encodes the texts."""
    changed = copy.deepcopy(prompt)
    for loader in nodes(prompt, "CheckpointLoaderSimple"):
        is_refiner = "refiner" in prompt[loader]["inputs"]["ckpt_name"]
        changed[loader]["inputs"]["ckpt_name"] = refiner if is_refiner else base
        for node in nodes(prompt, "CLIPTextEncode"):
            if not text_encoders and loader_of(prompt, prompt[node]["inputs"]["clip"]) == loader:
                changed |= without_text_encoder({node: prompt[node]}, 1280 if is_refiner else 2048)
    return changed


def with_steps(prompt: Prompt, steps: int, switch: int) -> Prompt:
    """The workflow with this many steps, of which a refiner takes those from `switch` on."""
    changed = copy.deepcopy(prompt)
    for inputs in samplers(changed):
        inputs["steps"] = steps
        if inputs.get("start_at_step"):
            inputs["start_at_step"] = switch
        elif "end_at_step" in inputs:
            inputs["end_at_step"] = switch
    return changed
