"""Which models a prompt samples: the files that are loaded and the LoRAs on the way, by the prompt alone.

Imports neither torch nor ComfyUI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from .editor_workflow import Types, described_as, inputs_of
from .trial_runs import Prompt, is_link, is_of_ours

# Inputs of loaders that name a model's file, and the host's folder for it.
FILE_INPUTS = {"ckpt_name": "checkpoints", "unet_name": "diffusion_models", "model_name": "diffusion_models"}
# Loaders that give a model as its file has it.
_PLAIN_LOADERS = frozenset({
    "CheckpointLoaderSimple", "ImageOnlyCheckpointLoader", "OneGraphLoadCheckpoint", "UNETLoader",
    "unCLIPCheckpointLoader",
})  # fmt: skip
_PASSING = frozenset({"*", "COMFY_MATCHTYPE_V3"})  # types of outputs that give what their node is given
_SWITCH = "ComfySwitchNode"
_USUAL = {"weight_dtype": "default"}  # inputs that change what such a loader makes of the file, where not this


@dataclass(frozen=True)
class SampledModel:
    """A model that a prompt samples.

    Attributes:
        node, type: of its loader.
        file, folder: its name there, and the host's folder; empty: the loader names no file.
        loras: names of files, in their order from the loader.
        backend: that the node of OneGraph on the way asks for; empty: there is none.
        any_size: whether that node asks for graphs for any size.
        as_in_file: whether the loader gives the model as the file has it.
    """

    node: str
    type: str
    file: str = ""
    folder: str = ""
    loras: tuple[str, ...] = ()
    backend: str = ""
    any_size: bool = True
    as_in_file: bool = True


def sampled_models(prompt: Prompt, types: Types) -> list[SampledModel]:
    """Tell which models a prompt samples, each with its LoRAs once, in the order of the samplers."""
    found: dict[SampledModel, None] = {}
    for node in prompt.values():
        outputs = _outputs(node, types)
        if outputs and _PASSING.isdisjoint(outputs) and "MODEL" not in outputs and {*outputs} != {"SIGMAS"}:
            for source in _models_of(node, prompt, types):
                found |= dict.fromkeys(_upstream(source, prompt, types, (), None, frozenset()))
    return [*found]


def _outputs(node: Mapping[str, Any], types: Types) -> tuple[str, ...]:
    return tuple(map(str, types.get(node["class_type"], {}).get("output") or ()))


def _models_of(node: Mapping[str, Any], prompt: Prompt, types: Types) -> list[str]:
    """The nodes whose models a node is given."""
    inputs = node.get("inputs", {})
    if node["class_type"] == _SWITCH and isinstance(inputs.get("switch"), bool):
        chosen = "on_true" if inputs["switch"] else "on_false"
        inputs = {chosen: inputs.get(chosen)}
    described = inputs_of(types.get(node["class_type"], {}))
    passes = not _PASSING.isdisjoint(_outputs(node, types))
    sources = []
    for name, value in inputs.items():
        if not is_link(value) or value[0] not in prompt:
            continue
        gives = _outputs(prompt[value[0]], types)[value[1] : value[1] + 1]
        wanted = described_as(described[name])[0] if name in described else None
        if gives == ("MODEL",) or wanted == "MODEL" or (passes and not _PASSING.isdisjoint(gives)):
            sources.append(value[0])
    return sources


def _upstream(
    key: str, prompt: Prompt, types: Types, loras: tuple[str, ...], ours: Mapping[str, Any] | None, seen: frozenset[str]
) -> Iterator[SampledModel]:
    if key in seen:  # a prompt that the host refuses
        return
    node = prompt[key]
    kind, inputs = node["class_type"], node.get("inputs", {})
    if is_of_ours(kind):
        ours = inputs
    sources = _models_of(node, prompt, types)
    loras = (*_loras(inputs), *loras)
    for source in sources:
        yield from _upstream(source, prompt, types, loras, ours, seen | {key})
    if sources:
        return
    file, folder = next(
        ((str(inputs[name]), where) for name, where in FILE_INPUTS.items() if isinstance(inputs.get(name), str)),
        ("", ""),
    )
    yield SampledModel(
        key, kind, file, folder, loras,
        backend="" if ours is None else str(ours.get("backend", "auto")),
        any_size=ours is None or ours.get("shapes", "any size") == "any size",
        as_in_file=kind in _PLAIN_LOADERS and all(inputs.get(n, usual) == usual for n, usual in _USUAL.items()),
    )  # fmt: skip


def _loras(inputs: Mapping[str, Any]) -> list[str]:
    """The LoRAs that a node's widgets name; other packs hold several as `{"on": ..., "lora": ...}`."""
    names = [value for name, value in inputs.items() if name.startswith("lora") and isinstance(value, str)]
    entries = [value for value in inputs.values() if isinstance(value, dict) and value.get("on", True)]
    return [name for name in (*names, *(entry.get("lora") for entry in entries)) if name and PurePath(str(name)).suffix]
