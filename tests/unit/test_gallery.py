"""docs/gallery.md is what its data give, and every family that a template is said to sample is one that can be run."""

from __future__ import annotations

import json
from typing import Any

import gallery
import gallery_templates
import pytest
from gallery_templates import NEWER, RULES, family_of, models_sampled, with_saved_types
from support.gallery import judge
from support.gallery.family import Family
from support.gallery.table import FAMILIES, SHORT

from onegraph.host.jobs.editor_workflow import prompt_of

TESTED = "1.2.3"
DATA = json.loads(gallery.DATA.read_text(encoding="utf-8"))
RIGHT: dict[str, Any] = {
    "family": "a", "first": {"compiled": 3, "uncompiled": 3, "compiles": 1, "reasons": {"no_graph": 3}},
    "later": {"compiled": 36, "uncompiled": 0, "compiles": 0, "reasons": {}},
    "restarted": {"compiled": 36, "uncompiled": 0, "compiles": 0, "reasons": {}}, "relative_l2": 4e-7, "furthest": 1e-5,
    "max_abs_diff_255": 0, "effect": 0.1, "comfyui": TESTED,
}  # fmt: skip
HOLES = {"compiled": 27, "uncompiled": 9, "compiles": 0, "reasons": {"block_sizes": 9}}
FURTHER = {"compiled": 27, "uncompiled": 9, "compiles": 1, "reasons": {"block_recorded": 9}}
SMALL = {"compiled": 27, "uncompiled": 9, "compiles": 0, "reasons": {"block_small": 9}}
NONE = {"compiled": 0, "uncompiled": 36, "compiles": 0, "reasons": {"block_option": 36}}


def test_the_page_is_what_its_data_give() -> None:
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page(DATA), "run tools/gallery.py"


def test_families_are_those_that_can_be_run() -> None:
    assert {rule.family for rule in RULES} - {"", NEWER} <= {*FAMILIES}
    assert {row["family"] for row in DATA["families"]} <= {*FAMILIES}
    assert {*SHORT} < {*FAMILIES}
    named = {one["family"] for template in DATA["templates"] for one in template["sampled"]}
    assert named - {"", NEWER} <= {*FAMILIES}


def test_most_templates_are_read() -> None:
    sampled = [one for one in DATA["templates"] if one["sampled"]]
    assert len(sampled) >= 200
    assert sum(any(model["family"] for model in one["sampled"]) for one in sampled) >= 0.85 * len(sampled)


@pytest.mark.parametrize(
    ("changed", "outcome", "share"),
    [
        ({}, "compiled", 1),
        ({"later": HOLES}, "partly", 0.75),
        ({"restarted": HOLES}, "partly", 0.75),
        ({"later": FURTHER}, "compiled", 1),
        ({"restarted": FURTHER}, "partly", 0.75),
        ({"later": SMALL, "restarted": SMALL}, "compiled", 1),
        ({"later": NONE, "restarted": NONE}, "uncompiled", 0),
        ({"relative_l2": 2e-5}, "wrong", 1),
        ({"relative_l2": float("nan")}, "wrong", 1),
        ({"max_abs_diff_255": 2}, "wrong", 1),
    ],
)
def test_what_a_row_tells(changed: dict[str, Any], outcome: str, share: float) -> None:
    told = gallery.told_of("a", {"a": {**RIGHT, **changed}})
    assert (told.outcome, told.share) == (outcome, share)


def test_a_template_is_what_the_least_of_its_models_is() -> None:
    rows = {"a": RIGHT, "b": {**RIGHT, "family": "b", "later": HOLES}}
    template = {
        "name": "t", "use": 1200, "lacking": [],
        "sampled": [
            {"file": f"{name}.safetensors", "family": name, "weights": "fp8", "nodes": ["LoraLoader", "KSampler"]}
            for name in "ab"
        ],
    }  # fmt: skip
    assert (
        gallery.line(template, rows, TESTED)
        == "| t | 1,200 | a, b | fp8 | LoRA > KSampler | 75 % | yes | `block_sizes` |"
    )
    lacking = {**template, "lacking": ["Later"]}
    assert gallery.line(lacking, rows, TESTED).endswith("| | | not run: newer than the tested ComfyUI (Later) |")
    later = {name: {**row, "comfyui": "1.3.0"} for name, row in rows.items()}
    assert gallery.told_of_template(lacking, {**later, "b": rows["b"]}, TESTED).outcome == NEWER
    assert gallery.told_of_template(lacking, later, TESTED).outcome == "partly"  # by a newer one, which has the node
    template["sampled"].append({**template["sampled"][0], "family": ""})
    assert gallery.told_of_template(template, rows, TESTED).outcome == "not run"
    table = [*gallery.shares([template, {**template, "use": 3600, "lacking": ["Later"]}], rows, TESTED)]
    assert table[2:] == [
        "| not exact | 0 % | 0 | 0 % |",
        "| not run: newer than the tested ComfyUI | 75 % | 1 | |",
        "| not run | 25 % | 1 | 100 % |",
    ]


def test_rows_of_other_families_stay() -> None:
    data = {"families": [RIGHT, {**RIGHT, "family": "b"}]}
    merged = gallery.with_rows(data, [{**RIGHT, "effect": 0.2}])["families"]
    assert [(row["family"], row["effect"]) for row in merged] == [("a", 0.2), ("b", 0.1)]


@pytest.mark.parametrize(
    ("changed", "family", "wrong"),
    [
        ({}, {}, 0),
        ({"later": HOLES}, {}, 2),
        ({"later": HOLES}, {"promised": "some", "codes": ("block_sizes",)}, 0),
        ({"later": NONE, "restarted": NONE}, {"promised": "none", "codes": ("block_option",)}, 0),
        ({}, {"promised": "none", "codes": ("block_option",)}, 3),
        ({"restarted": {**RIGHT["restarted"], "compiles": 1}}, {}, 1),
        ({"effect": 1e-6}, {}, 1),
        ({"relative_l2": float("nan")}, {}, 1),
    ],
)
def test_what_is_wrong_with_a_row(changed: dict[str, Any], family: dict[str, Any], wrong: int) -> None:
    values = {**RIGHT, **changed}
    for name in ("first", "later", "restarted"):
        values[name] = judge.Calls(**values[name])
    of: Any = Family(FAMILIES["flux"].dit, FAMILIES["flux"].sizes, **family)
    assert len(list(judge.problems(of, judge.Row(**values)))) == wrong


TYPES: dict[str, Any] = {
    "UNETLoader": {"input": {"required": {"unet_name": [["a"]], "weight_dtype": [["default"]]}}, "output": ["MODEL"]},
    "KSampler": {"input": {"required": {"model": ["MODEL"]}}, "output": ["LATENT"]},
    "SaveImage": {"input": {"required": {"images": ["LATENT"]}}, "output": [], "output_node": True},
    "ComfySwitchNode": {
        "input": {"required": {"switch": ["BOOLEAN"], "on_false": ["*"], "on_true": ["*"]}}, "output": ["*"],
    },
}  # fmt: skip


def workflow(switch: bool) -> dict[str, Any]:
    """A model by a switch, after a node that the server does not have."""
    return {
        "nodes": [
            {"id": 1, "type": "UNETLoader", "widgets_values": ["sub/Z_Image_turbo_bf16.safetensors", "default"]},
            {"id": 2, "type": "Later", "inputs": [{"name": "model", "type": "MODEL", "link": 1}],
             "outputs": [{"name": "MODEL", "type": "MODEL"}]},
            {"id": 3, "type": "ComfySwitchNode", "widgets_values": [switch],
             "inputs": [{"name": "on_false", "type": "*", "link": 2}, {"name": "on_true", "type": "*", "link": 3}]},
            {"id": 4, "type": "KSampler", "inputs": [{"name": "model", "type": "MODEL", "link": 4}]},
            {"id": 5, "type": "SaveImage", "inputs": [{"name": "images", "type": "LATENT", "link": 5}]},
            {"id": 6, "type": "Note"},
        ],
        "links": [[1, 1, 0, 2, 0, "MODEL"], [2, 1, 0, 3, 0, "MODEL"], [3, 2, 0, 3, 1, "MODEL"],
                  [4, 3, 0, 4, 0, "MODEL"], [5, 4, 0, 5, 0, "LATENT"]],
    }  # fmt: skip


@pytest.mark.parametrize(("switch", "nodes"), [(True, ("Later", "KSampler")), (False, ("KSampler",))])
def test_a_model_is_followed_from_its_loader_to_what_samples(switch: bool, nodes: tuple[str, ...]) -> None:
    data = workflow(switch)
    types = with_saved_types(data, TYPES)
    assert {*types} - {*TYPES} == {"Later"}
    (found,) = models_sampled(prompt_of(data, types, "t"), types, "t")
    assert found == gallery_templates.Sampled("Z_Image_turbo_bf16.safetensors", "z-image", "bf16", nodes)


def test_a_family_is_told_by_the_file_and_the_nodes_beside_it() -> None:
    assert family_of("minimax_h3_fl2va.safetensors", {"LoadImage"}) == "minimax h3 i2v"
    assert family_of("minimax_h3_fl2va.safetensors", {"CLIPLoader"}) == "minimax h3 t2v"
    assert family_of("ltx-2.5-22b-int8_convrot.safetensors", set()) == "ltx 2.5"
    assert family_of("flux3-image-klein-int8-convrot.safetensors", set()) == NEWER
    for name, family in (("turbo_image_edit", "qwen-image 2.1 edit"), ("turbo_t2i", "qwen-image 2.1")):
        assert family_of("qwen_image_2.1_int8_convrot.safetensors", {f"image_qwen_image_2_1_{name}"}) == family
    assert family_of("upscaler.safetensors", {"LoadImage"}) == ""
