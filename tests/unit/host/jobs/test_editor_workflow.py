"""A workflow as the editor saves it becomes the prompt that the front end would queue."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.comfyui.prompts import computed

from onegraph.host.jobs.editor_workflow import is_editors, lacking, prompt_of
from onegraph.host.jobs.inserting import COMPILE_MODEL, inserted, with_compile_nodes
from onegraph.host.jobs.trial_runs import CannotTellError, JobError

MODES = {"mode": {"key": "fast", "inputs": {"required": {"speed": ["INT", {"default": 3}]}}}}


def kind(required: dict[str, Any], output: tuple[str, ...] = (), ends: bool = False, **optional: Any) -> dict[str, Any]:
    return {"input": {"required": required, "optional": optional}, "output": [*output], "output_node": ends}


TYPES: dict[str, Any] = {
    "Loader": kind({"file": [["a.safetensors", "b.safetensors"]]}, ("MODEL", "CLIP")),
    "LoRA": kind({"model": ["MODEL"], "strength": ["FLOAT", {"default": 1.0}]}, ("MODEL",)),
    "Sampler": kind(
        {"model": ["MODEL"], "seed": ["INT", {"control_after_generate": True}], "steps": ["INT", {"default": 20}],
         "name": [["euler", "ddim"]], "note": ["STRING", {"forceInput": True}]},
        ("LATENT",), later=["FLOAT", {"default": 0.5}],
    ),
    "Mode": kind({"mode": ["COMFY_DYNAMICCOMBO_V3", {"options": [MODES["mode"], {"key": "slow", "inputs": {}}]}],
                  "after": ["INT", {}]}, ("INT",)),
    "Text": kind({"text": ["STRING", {}]}, ("STRING",)),
    "Save": kind({"latent": ["LATENT"], "prefix": ["STRING", {}]}, ends=True),
    COMPILE_MODEL: kind({"model": ["MODEL"], "backend": [["auto", "off"], {"default": "auto"}]}, ("MODEL", "STRING")),
}  # fmt: skip


def node(number: Any, name: str, *values: Any, inputs: Any = (), outputs: Any = (), mode: int = 0) -> dict[str, Any]:
    """`inputs`: pairs of a name and a link, with a type where it tells; with a star those that are widgets."""
    made = []
    for name_of_input, link, *of_type in inputs:
        widget = {"widget": {"name": name_of_input[1:]}} if name_of_input.startswith("*") else {}
        made.append({"name": name_of_input.lstrip("*"), "link": link, "type": "".join(of_type), **widget})
    return {
        "id": number, "type": name, "widgets_values": [*values], "inputs": made, "mode": mode,
        "outputs": [{"type": one} for one in outputs],
    }  # fmt: skip


def link(number: int, origin: Any, slot: int, target: Any, target_slot: int) -> dict[str, Any]:
    return {"id": number, "origin_id": origin, "origin_slot": slot, "target_id": target, "target_slot": target_slot}


def as_list(one: dict[str, Any]) -> list[Any]:
    return [*one.values(), "*"]


LOADER = node(1, "Loader", "a.safetensors")
SAMPLER = node(3, "Sampler", 7, "randomize", 30, "ddim", 0.25, inputs=[("model", 11), ("note", None)])
SAVE = node(4, "Save", "x", inputs=[("latent", 12)])


def workflow(*between: dict[str, Any], links: Any = (), **more: Any) -> dict[str, Any]:
    ends = [link(12, 3, 0, 4, 0)]
    return {"nodes": [SAVE, SAMPLER, *between, LOADER], "links": [as_list(one) for one in (*links, *ends)], **more}


def made(data: dict[str, Any]) -> Any:
    return prompt_of(data, TYPES, "flow.json")


def test_values_get_the_names_of_their_widgets() -> None:
    prompt = made(workflow(node(9, "Note", "hello"), links=[link(11, 1, 0, 3, 0)]))
    assert prompt == {
        "4": {"class_type": "Save", "inputs": {"latent": ["3", 0], "prefix": "x"}},
        "3": {"class_type": "Sampler", "inputs": {
            "model": ["1", 0], "seed": 7, "steps": 30, "name": "ddim", "later": 0.25}},
        "1": {"class_type": "Loader", "inputs": {"file": "a.safetensors"}},
    }  # fmt: skip


def test_widgets_that_a_node_did_not_have_when_it_was_saved_hold_what_they_do_at_first() -> None:
    data = workflow(links=[link(11, 1, 0, 3, 0)])
    data["nodes"][1] = {**SAMPLER, "widgets_values": [7, "fixed", 30]}
    assert made(data)["3"]["inputs"] == {"model": ["1", 0], "seed": 7, "steps": 30, "name": "euler", "later": 0.5}
    data["nodes"][1] = {**SAMPLER, "widgets_values": {"steps": 9, "seed": 1}}
    assert made(data)["3"]["inputs"] == {"model": ["1", 0], "seed": 1, "steps": 9}


@pytest.mark.parametrize(
    ("values", "inputs"),
    [(["fast", 5, 6], {"mode": "fast", "mode.speed": 5, "after": 6}), (["slow", 6], {"mode": "slow", "after": 6})],
)
def test_a_choice_brings_widgets_of_its_own(values: list[Any], inputs: dict[str, Any]) -> None:
    sampler = {**SAMPLER, "inputs": [{"name": "model", "link": 11}, {"name": "note", "link": 13}]}
    data = workflow(node(5, "Mode", *values), links=[link(11, 1, 0, 3, 0), link(13, 5, 0, 3, 1)])
    data["nodes"][1] = sampler
    assert made(data)["5"]["inputs"] == inputs


@pytest.mark.parametrize(
    ("between", "links", "expected"),
    [
        ([node(2, "Reroute", inputs=[("", 10)])], [link(10, 1, 0, 2, 0), link(11, 2, 0, 3, 0)], ["1", 0]),
        ([node(2, "LoRA", 0.5, inputs=[("model", 10, "MODEL")], outputs=["MODEL"], mode=4)],
         [link(10, 1, 0, 2, 0), link(11, 2, 0, 3, 0)], ["1", 0]),
        ([node(2, "LoRA", 0.5, inputs=[("model", 10, "MODEL")], outputs=["MODEL"], mode=2)],
         [link(10, 1, 0, 2, 0), link(11, 2, 0, 3, 0)], None),
        ([node(5, "SetNode", "m", inputs=[("MODEL", 10)]), node(2, "GetNode", "m")],
         [link(10, 1, 0, 5, 0), link(11, 2, 0, 3, 0)], ["1", 0]),
        ([node(5, "SetNode", "other", inputs=[("MODEL", 10)]), node(2, "GetNode", "m")],
         [link(10, 1, 0, 5, 0), link(11, 2, 0, 3, 0)], None),
        ([node(2, "Reroute", inputs=[("", 10)])], [link(10, 2, 0, 2, 0), link(11, 2, 0, 3, 0)], None),  # in a ring
        ([], [link(11, 99, 0, 3, 0)], None),
    ],
)  # fmt: skip
def test_links_are_followed(between: Any, links: Any, expected: Any) -> None:
    assert made(workflow(*between, links=links))["3"]["inputs"].get("model") == expected


def test_a_primitive_node_gives_its_value() -> None:
    data = workflow(node(8, "PrimitiveNode", 99, "fixed"), links=[link(11, 1, 0, 3, 0), link(13, 8, 0, 3, 1)])
    data["nodes"][1] = {**SAMPLER, "inputs": [{"name": "model", "link": 11}, {"name": "seed", "link": 13}]}
    assert made(data)["3"]["inputs"]["seed"] == 99


def subgraph(mode: int = 0, values: Any = ("b.safetensors", 0.75), link_of_strength: Any = None) -> dict[str, Any]:
    """The loader and a LoRA in a subgraph, of which the file and the strength can be set from outside."""
    inside = {
        "id": "sub", "inputs": [{"name": "file"}, {"name": "strength"}], "outputs": [{"name": "MODEL"}],
        "inputNode": {"id": -10}, "outputNode": {"id": -20},
        "nodes": [
            node(1, "Loader", "a.safetensors", inputs=[("*file", 1)]),
            node(2, "LoRA", 0.5, inputs=[("model", 2, "MODEL"), ("*strength", 3)]),
        ],
        "links": [link(1, -10, 0, 1, 0), link(3, -10, 1, 2, 1), link(2, 1, 0, 2, 0), link(4, 2, 0, -20, 0)],
    }  # fmt: skip
    outside = node(7, "sub", *values, inputs=[("*strength", link_of_strength)], outputs=["MODEL"], mode=mode)
    return workflow(
        outside, node(8, "PrimitiveNode", 0.125), definitions={"subgraphs": [inside]},
        links=[link(11, 7, 0, 3, 0), link(14, 8, 0, 7, 0)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "file", "strength"),
    [({}, "b.safetensors", 0.75), ({"values": ()}, "a.safetensors", 0.5),
     ({"link_of_strength": 14}, "b.safetensors", 0.125)],
)  # fmt: skip
def test_a_subgraph_is_taken_apart(options: Any, file: str, strength: float) -> None:
    prompt = made(subgraph(**options))
    assert prompt["3"]["inputs"]["model"] == ["7:2", 0]
    assert prompt["7:2"] == {"class_type": "LoRA", "inputs": {"model": ["7:1", 0], "strength": strength}}
    assert prompt["7:1"] == {"class_type": "Loader", "inputs": {"file": file}}


def test_a_subgraph_that_is_muted_runs_nothing() -> None:
    prompt = made(subgraph(mode=2))
    assert {*prompt} == {"3", "4"} and "model" not in prompt["3"]["inputs"]


def test_subgraphs_in_each_other() -> None:
    data = subgraph()
    inner = data["definitions"]["subgraphs"][0]
    outer = {
        "id": "outer", "inputs": [{"name": "which"}], "outputs": [{"name": "MODEL"}], "inputNode": {"id": -10},
        "outputNode": {"id": -20}, "nodes": [node(5, "sub", inputs=[("*file", 1)], outputs=["MODEL"])],
        "links": [link(1, -10, 0, 5, 0), link(2, 5, 0, -20, 0)],
    }  # fmt: skip
    data["definitions"]["subgraphs"].append(outer)
    data["nodes"][2] = node(7, "outer", "b.safetensors", outputs=["MODEL"])
    prompt = made(data)
    assert prompt["3"]["inputs"]["model"] == ["7:5:2", 0]
    assert prompt["7:5:1"]["inputs"] == {"file": "b.safetensors"}
    inner["nodes"].append(node(9, "outer"))
    with pytest.raises(JobError, match="in itself"):
        made(data)


@pytest.mark.parametrize("data", [{"nodes": [{}]}, {"nodes": [3]}, {"nodes": [SAVE], "links": [[1]]},
                                  {"nodes": [SAVE], "definitions": {"subgraphs": [{}]}}])  # fmt: skip
def test_what_cannot_be_read_is_told(data: Any) -> None:
    with pytest.raises(JobError, match="flow"):
        made(data)


def test_what_runs_nothing_or_is_not_there_is_told() -> None:
    with pytest.raises(CannotTellError, match="nothing of it"):
        made({"nodes": [LOADER]})
    data = workflow(node(2, "Unknown"), links=[link(11, 2, 0, 3, 0)])
    with pytest.raises(CannotTellError, match="Node 2 is of type Unknown, which this ComfyUI does not have"):
        made(data)
    data["nodes"] = [SAVE, {**SAMPLER, "inputs": []}, node(2, "Unknown")]
    assert "2" not in made(data)  # nothing needs it


def test_nodes_of_the_pack_are_put_behind_loaders() -> None:
    lora = node(2, "LoRA", 0.5, inputs=[("model", 10, "MODEL")], outputs=["MODEL"])
    prompt = made(workflow(lora, links=[link(10, 1, 0, 2, 0), link(11, 2, 0, 3, 0)]))
    with_nodes, loaders = with_compile_nodes(prompt, TYPES)
    assert loaders == ["1"]
    assert with_nodes["1 compiled"] == {
        "class_type": COMPILE_MODEL, "inputs": {"model": ["1", 0], "backend": "auto"},
    }  # fmt: skip
    assert with_nodes["2"]["inputs"]["model"] == ["1 compiled", 0]
    assert prompt["2"]["inputs"]["model"] == ["1", 0]  # the workflow stays as it is
    assert with_compile_nodes(with_nodes, TYPES) == (with_nodes, [])
    with pytest.raises(JobError, match="no OneGraph"):
        with_compile_nodes(prompt, {name: one for name, one in TYPES.items() if name != COMPILE_MODEL})


def test_files_that_are_not_there_are_named() -> None:
    data = workflow(links=[link(11, 1, 0, 3, 0)])
    assert lacking(made(data), TYPES) == []
    data["nodes"][-1] = node(1, "Loader", "c.safetensors")
    assert lacking(made(data), TYPES) == ["node 1 (Loader) needs c.safetensors"]
    none = {**TYPES, "Loader": kind({"file": [[]]}, ("MODEL",))}
    assert lacking(made(data), none) == ["node 1 (Loader) needs c.safetensors"]
    data["nodes"][-1] = node(1, "Loader", "a choice of the workflow")
    assert lacking(made(data), none) == []


def test_formats_are_told_apart() -> None:
    assert is_editors(workflow()) and not is_editors({"1": {"class_type": "Save", "inputs": {}}}) and not is_editors([])


@pytest.mark.parametrize("data", [
    workflow(links=[link(11, 1, 0, 3, 0)]),
    workflow(node(2, "LoRA", 0.5, inputs=[("model", 10, "MODEL")], outputs=["MODEL"]),
             links=[link(10, 1, 0, 2, 0), link(11, 2, 0, 3, 0)]),
    subgraph(),
])  # fmt: skip
def test_inserting_and_asking_put_the_nodes_in_the_same_places(data: dict[str, Any]) -> None:
    for graph in (data, *data.get("definitions", {}).get("subgraphs", ())):
        for one in graph["nodes"]:
            if one["type"] == "Loader":
                links = [x[0] for x in map(_origins, graph["links"]) if x[1:] == (1, 0)]
                one |= {"outputs": [{"type": "MODEL", "links": links}], "pos": [10, 20], "size": [100, 50]}
    before = copy.deepcopy(data)
    with_node, after = inserted(data, "flow.json")
    assert data == before
    assert after == ["1 (Loader)"]
    assert computed(made(with_node)) == computed(with_compile_nodes(made(data), TYPES)[0])
    assert inserted(with_node, "flow.json") == (with_node, [])
    places = [one["pos"] for graph in (with_node, *with_node.get("definitions", {}).get("subgraphs", ()))
              for one in graph["nodes"] if one["type"] == COMPILE_MODEL]  # fmt: skip
    assert places == [[170, 20]]


def _origins(one: Any) -> tuple[Any, Any, Any]:
    return (one["id"], one["origin_id"], one["origin_slot"]) if isinstance(one, dict) else tuple(one[:3])


@pytest.mark.parametrize("data", [[], {"1": {"class_type": "Save", "inputs": {}}}, {"nodes": [3]}, {"nodes": [{}]}])
def test_what_nothing_can_be_put_into_is_told(data: Any) -> None:
    with pytest.raises(JobError, match=r"flow\.json"):
        inserted(data, "flow.json")
    assert inserted({"nodes": [SAVE]}, "flow.json")[1] == []


@pytest.mark.parametrize(
    ("others", "pos"),
    [
        ([], [360.0, 100.0]),
        ([{"pos": [420, 200], "size": [200, 100]}], [100.0, 210.0]),
        (
            [{"pos": [420, 200], "size": [200, 100]}, {"pos": {"0": 0, "1": 300}, "size": {"0": 200, "1": 9}}],
            [100.0, -90.0],
        ),
        ([{"pos": [-500, -500], "size": [2000, 2000]}], [360.0, 100.0]),
    ],
)
def test_a_node_is_put_where_none_is_in_the_way(others: list[dict[str, Any]], pos: list[float]) -> None:
    loader = node(1, "Loader", outputs=[("MODEL", [7])]) | {"pos": [100, 100], "size": [200, 50]}
    loader["outputs"] = [{"name": "MODEL", "type": "MODEL", "links": [7]}]
    sampler = node(2, "Sampler", inputs=[("model", 7)]) | {"pos": [3000, 100], "size": [200, 200]}
    rest = [node(number, "Text") | one for number, one in enumerate(others, 3)]
    data = {"nodes": [loader, sampler, *rest], "links": [[7, 1, 0, 2, 0, "MODEL"]]}
    made, _ = inserted(data, "flow.json")
    assert made["nodes"][-1]["pos"] == pos
