"""ComfyUI's own templates, read without running them: what they sample, from which files, by which nodes.

Their index says how often each is used. Families are those of `tests/support/gallery`; a rule of `RULES` tells one by
the name of a model's file and by the types of nodes beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onegraph.host.jobs import editor_workflow
from onegraph.host.jobs.editor_workflow import Types
from onegraph.host.jobs.trial_runs import JobError, Prompt

NEWER = "newer"  # in place of a family: ComfyUI's class is newer than the tested one
_FILE = re.compile(r"\.(safetensors|sft|ckpt|pth?|gguf)$")
_CORE = "comfy-core"  # as saved nodes tell where their type is from
_GIVEN = frozenset({"MODEL", "CONDITIONING", "GUIDER", "SAMPLER"})  # of which models are called with something else
_SWITCH, _SIDES = "ComfySwitchNode", ("on_true", "on_false")
_VIRTUAL = frozenset({"GetNode", "MarkdownNote", "Note", "PrimitiveNode", "Reroute", "SetNode"})  # of the front end
_FORMATS = (
    ("int8.convrot", "int8 convrot"), ("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("fp8.?mixed", "fp8 mixed"),
    ("fp8.*scaled", "fp8 scaled"), ("fp8", "fp8"), ("bf16", "bf16"), ("fp16", "fp16"), ("gguf", "GGUF"),
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """Which family a model is.

    Attributes:
        file: searched for in the name of the model's file, in lower case.
        family: of `tests/support/gallery`, or `NEWER`; empty: none of them is like it.
        node: begins the type of a node of the workflow, or the workflow's name.
    """

    file: str
    family: str
    node: str = ""


RULES = (
    Rule(r"qwen_image_2\.1", "qwen-image 2.1 edit", "image_qwen_image_2_1_.*(edit|removal)"),
    Rule(r"qwen_image_2\.1", "qwen-image 2.1"),
    Rule(r"ltx-2\.5", "ltx 2.5, first frame", "LTXVImgToVideo|LTXVAddGuide"),
    Rule(r"ltx-2\.5", "ltx 2.5"),
    Rule("fasth3_omniref", "fasth3 r2v"),
    Rule("fasth3", "fasth3 i2v", "LoadImage"),
    Rule("fasth3", "fasth3 t2v"),
    Rule("wan_animate_2", "wan animate 2"),
    Rule("minimax_music3_dit", "minimax music 3"),
    Rule("flux3|moss_image|pixal3d|ming_image|yue2|fibo2", NEWER),
    Rule("minimax_h3_ref2va", "minimax h3 r2v, guides", "MiniMaxH3AddGuide"),
    Rule("minimax_h3_ref2va", "minimax h3 r2v"),
    Rule("stable_audio_3", "stable audio 3"),
    Rule("stable-audio-open", "stable audio"),
    Rule("minimax_h3_fl2va", "minimax h3 i2v", "LoadImage"),
    Rule("minimax_h3_fl2va", "minimax h3 t2v"),
    Rule(r"ltx-2\.3", "ltx 2.3", "video_ltx2_3_t2v"),
    Rule(r"ltx-2\.3", "ltx 2.3, first frame", "LTXVImgToVideo|LTXVAddGuide|LTXAddVideoICLoRA"),
    Rule(r"ltx-2\.3", "ltx 2.3"),
    Rule("ltx-2-19b", "ltx 2, first frame", "LTXVImgToVideo|LTXVAddGuide"),
    Rule("ltx-2-19b", "ltx 2"),
    Rule("ltx-video-2b", "ltxv, first frame", "LTXVImgToVideo"),
    Rule("ltx-video-2b", "ltxv"),
    Rule("z_image", "z-image fun controlnet", "QwenImageDiffsynthControlnet|ZImageFunControlnet"),
    Rule("z_image", "z-image"),
    Rule("krea2", "krea 2 style reference", "ReferenceLatent|FluxKontextMultiReference"),
    Rule("krea2", "krea 2"),
    Rule("qwen_image_layered", "qwen-image layered"),
    Rule("qwen_image_edit_2511", "qwen-image-edit 2511"),
    Rule("qwen_image_edit_2509", "qwen-image-edit 2509"),
    Rule("qwen_image_edit|firered", "qwen-image-edit"),
    Rule("qwen_image", "qwen-image diffsynth", "QwenImageDiffsynthControlnet"),
    Rule("qwen_image", "qwen-image controlnet", "ControlNetApply"),
    Rule("qwen_image", "qwen-image-edit", "ReferenceLatent"),
    Rule("qwen_image", "qwen-image"),
    Rule("anima", "", "AnimaLLLiteApply"),
    Rule("anima", "anima"),
    Rule("flux2_dev", "flux 2"),
    Rule("flux-2-klein.*-kv", "flux 2 klein kv"),
    Rule("flux-2-klein", "flux 2 klein edit", "ReferenceLatent"),
    Rule("flux-2-klein", "flux 2 klein"),
    Rule("flux1-schnell", "flux schnell"),
    Rule("kontext", "flux kontext"),
    Rule(r"flux\.?1-fill", "flux fill"),
    Rule("flux1-canny", "flux canny"),
    Rule("flux1-dev", "flux uso", "USOStyleReference"),
    Rule("flux1-dev", "flux redux", "StyleModelApply"),
    Rule("flux1-dev", "", "InstructPixToPixConditioning"),  # its LoRA changes the shape of a layer
    Rule("flux1-(krea-)?dev", "flux"),
    Rule("chroma-radiance", "chroma radiance"),
    Rule("chroma", "chroma"),
    Rule("ovis", "ovis"),
    Rule("longcat_image_edit", "longcat edit"),
    Rule("longcat", "longcat"),
    Rule("netayume", "lumina 2"),
    Rule("newbie", "newbie"),
    Rule("hidream_i1", "hidream i1"),
    Rule("hidream_e1", "hidream e1"),
    Rule("hidream_o1_image_dev", "hidream o1 dev"),
    Rule("hidream_o1", "hidream o1"),
    Rule("omnigen2", "omnigen 2 edit", "ReferenceLatent"),
    Rule("omnigen2", "omnigen 2"),
    Rule("boogu_image_edit", "boogu edit"),
    Rule("boogu", "boogu"),
    Rule("ideogram4", "ideogram 4"),
    Rule("lens", "lens"),
    Rule("mage_flow_edit", "mage flow edit"),
    Rule("mage_flow", "mage flow"),
    Rule("joyai_image_edit", "joyimage edit"),
    Rule("ernie", "ernie"),
    Rule(r"sd3\.5", "", "ControlNetApply"),
    Rule(r"sd3\.5", "sd 3.5"),
    Rule("kandinsky5lite_t2i", "kandinsky 5 image"),
    Rule("kandinsky5lite_i2v", ""),
    Rule("kandinsky5", "kandinsky 5 video"),
    Rule("pixeldit", "pixeldit"),
    Rule("pid_", "pid"),
    Rule(r"wan2\.2_i2v|wan2\.2_fun_inpaint_(high|low)", "wan 2.2 i2v"),
    Rule(r"wan2\.2_t2v", "wan 2.2 t2v"),
    Rule(r"wan2\.2_ti2v_5b", "wan 2.2 5B, first frame", "LoadImage"),
    Rule(r"wan2\.2_ti2v_5b", "wan 2.2 5B"),
    Rule(r"wan2\.2_bernini", "wan bernini"),
    Rule(r"wan2\.2_s2v", "wan 2.2 s2v"),
    Rule(r"wan2\.2_dancer", "wan dancer"),
    Rule(r"wan2\.2_fun_control_(high|low)", "wan 2.2 fun control"),
    Rule(r"wan2\.2_fun_camera", "wan 2.2 fun camera"),
    Rule(r"wan2\.1_fun_control", "wan 2.1 fun control"),
    Rule(r"wan2\.1_fun_inp", "wan 2.1 fun inpaint"),
    Rule(r"wan2\.1_fun_camera", "wan fun camera"),
    Rule(r"wan2\.1_vace", "wan vace"),
    Rule("scail_2", "wan scail 2"),
    Rule(r"wan2\.1_flf2v", "wan 2.1 flf2v"),
    Rule(r"wan2\.1_i2v", "wan 2.1 i2v"),
    Rule(r"wan2\.1_t2v", "wan t2v"),
    Rule("humo", "wan humo"),
    Rule("chrono_edit", "wan chronoedit"),
    Rule("causal_forcing", "", "ARVideoI2V"),
    Rule("causal_forcing", "wan causal"),
    Rule("capybara|hunyuanvideo1.5", "hunyuan video 1.5, first frame", "HunyuanVideo15ImageToVideo"),
    Rule("capybara|hunyuanvideo1.5", "hunyuan video 1.5"),
    Rule("hunyuan_video_t2v", "hunyuan video"),
    Rule("void_pass", "cogvideox inpaint"),
    Rule("seedvr2", "seedvr 2"),
    Rule("acestep_v1.5|ace_step_1.5", "ace-step 1.5"),
    Rule("ace_step_v1", "ace-step 1"),
    Rule("lotus-depth-d", "lotus"),
    Rule("sd_xl_refiner", "sdxl refiner"),
    Rule("sd_xl_(base|turbo)", "sdxl"),
    Rule("hunyuan3d-dit-v2-mv", "hunyuan3d 2 mv turbo"),
    Rule("hunyuan3d-dit-v2", "hunyuan3d 2"),
    Rule("hunyuan_3d_v2.1", "hunyuan3d 2.1"),
    Rule("triposplat", "triposplat"),
)  # fmt: skip


@dataclass(frozen=True)
class Sampled:
    """A model that a template samples.

    Attributes:
        file: that is loaded.
        family: of `tests/support/gallery`, `NEWER`, or empty.
        weights: their format, as the file's name tells it.
        nodes: types from behind the loader to the sampler or guider.
    """

    file: str
    family: str
    weights: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """A template.

    Attributes:
        use: how often it is used, as the index tells it.
        sampled: the models, each way to one once.
        lacking: types of ComfyUI's own nodes that the tested ComfyUI does not have, of those that say what a model is
            called with.
    """

    name: str
    use: int
    sampled: tuple[Sampled, ...]
    lacking: tuple[str, ...]


def family_of(file: str, words: Set[str]) -> str:
    """The family of a model's file in a workflow of this name and these types of nodes; empty: none is like it."""
    for rule in RULES:
        if re.search(rule.file, file.lower()) and (not rule.node or any(re.match(rule.node, one) for one in words)):
            return rule.family
    return ""


def weights_of(file: str, loader: Mapping[str, Any]) -> str:
    """The format of a file's weights by its name, or what the loader casts them to."""
    cast = loader.get("weight_dtype", "default")
    if cast != "default":
        return f"cast to {cast}"
    return next((name for pattern, name in _FORMATS if re.search(pattern, file.lower())), "not named")


def nodes_in(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All nodes of a workflow of the editor, and of its subgraphs' definitions."""
    for graph in (data, *((data.get("definitions") or {}).get("subgraphs") or ())):
        yield from graph["nodes"]


def with_saved_types(data: Mapping[str, Any], types: Types) -> dict[str, Mapping[str, Any]]:
    """The server's types, and those that it does not have as far as a workflow tells them."""
    made = {**types}
    others = {one["id"] for one in (data.get("definitions") or {}).get("subgraphs") or ()} | _VIRTUAL
    for node in nodes_in(data):
        if node["type"] not in made and node["type"] not in others:
            inputs = {one["name"]: [one.get("type")] for one in node.get("inputs") or () if not one.get("widget")}
            outputs = [one.get("type") for one in node.get("outputs") or ()]
            made[node["type"]] = {"input": {"required": inputs}, "output": outputs, "output_node": not outputs}
    return made


def models_sampled(prompt: Prompt, types: Types, name: str) -> Iterator[Sampled]:
    """The models that a template samples, by each way from a loader to what samples."""
    words = {name, *(node["class_type"] for node in prompt.values())}
    for key, node in prompt.items():
        outputs = types[node["class_type"]].get("output") or ()
        if "MODEL" in outputs or not {"LATENT", "GUIDER"} & {*map(str, outputs)}:
            continue
        for place in _model_inputs(node, types):
            nodes, loader = _way(prompt, types, key, place)
            values = [value for value in loader["inputs"].values() if isinstance(value, str) and _FILE.search(value)]
            if values:
                file = values[0].replace("\\", "/").rpartition("/")[2]
                yield Sampled(file, family_of(file, words), weights_of(file, loader["inputs"]), (*nodes,))


def _model_inputs(node: Mapping[str, Any], types: Types) -> list[str]:
    described = editor_workflow.inputs_of(types[node["class_type"]])
    kinds = {name: editor_workflow.described_as(one)[0] for name, one in described.items()}
    linked = [name for name, value in node["inputs"].items() if editor_workflow.is_link(value)]
    return [name for name in linked if kinds.get(name) == "MODEL"]


def _way(prompt: Prompt, types: Types, key: str, name: str) -> tuple[list[str], Mapping[str, Any]]:
    """The types of nodes that a model passes, the last first turned round, and the node that loads it."""
    nodes = [prompt[key]["class_type"]]
    node = prompt[prompt[key]["inputs"][name][0]]
    for _ in prompt:
        if node["class_type"] == _SWITCH:
            before = _switched(prompt, node)
        else:
            before = next((node["inputs"][one] for one in _model_inputs(node, types)), None)
            nodes += [node["class_type"]] if before is not None else []
        if before is None or before[0] not in prompt:
            break
        node = prompt[before[0]]
    return nodes[::-1], node


def _switched(prompt: Prompt, node: Mapping[str, Any]) -> Any:
    """What a switch passes on, as it is saved."""
    chosen = node["inputs"].get("switch")
    if editor_workflow.is_link(chosen):
        chosen = prompt.get(chosen[0], {"inputs": {}})["inputs"].get("value")
    names = _SIDES if chosen is True else _SIDES[::-1]
    return next((node["inputs"][one] for one in names if editor_workflow.is_link(node["inputs"].get(one))), None)


def read(folder: Path, types: Types) -> Iterator[Template]:
    """The templates of a folder with their index, the most used first.

    Args:
        types: as the tested ComfyUI's `/object_info` tells them.
    """
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    uses = {one["name"]: int(one.get("usage") or 0) for group in index for one in group["templates"]}
    for name, use in sorted(uses.items(), key=lambda one: (-one[1], one[0])):
        data = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        if not editor_workflow.is_editors(data):
            continue
        known = with_saved_types(data, types)
        try:
            prompt = editor_workflow.prompt_of(data, known, name)
        except JobError:
            continue  # nothing is saved or shown
        used = {node["class_type"] for node in prompt.values()}
        core = {node["type"] for node in nodes_in(data) if _is_core(node.get("properties") or {})}
        lacking = {
            one for one in (used & core) - {*types} if _GIVEN.intersection(map(str, known[one].get("output") or ()))
        }
        sampled = dict.fromkeys(models_sampled(prompt, known, name))
        yield Template(name, use, (*sampled,), (*sorted(lacking),))


def _is_core(properties: Mapping[str, Any]) -> bool:
    """Whether a saved node is ComfyUI's own: those of others tell which pack they are from."""
    return properties.get("cnr_id", _CORE) == _CORE and "aux_id" not in properties


def to_json(template: Template) -> dict[str, Any]:
    return asdict(template)
