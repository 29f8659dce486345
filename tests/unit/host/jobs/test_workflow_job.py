"""The short form of a workflow: what `bake` and `explain` run in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.comfyui.prompts import node

from onegraph.host.jobs.trial_runs import (
    JobError,
    NodeType,
    Prompt,
    checked,
    nodes_of_ours,
    read,
    run_until_nothing_compiles,
    shortened,
)


@pytest.fixture
def prompt() -> Prompt:
    return {
        "1": node("OneGraphCompileModel", model=["0", 0], when_missing="background"),
        "2": node("KSampler", model=["1", 0], seed=5, steps=30),
        "3": node("KSamplerAdvanced", noise_seed=5, steps=25, start_at_step=20, end_at_step=25),
        "4": node("SplitSigmas", sigmas=["9", 0], step=20),
        "5": node("SaveImage", images=["2", 0], filename_prefix="x"),
        "6": node("EmptyLatentImage", width=1024, height=1024),
        "7": node("ImageScale", width=64, height=64),
        "8": node("BasicScheduler", steps=["2", 0]),
        "9": node("BasicScheduler", steps=1),
    }


def test_two_steps_of_each_sampler_and_nothing_saved(prompt: Prompt) -> None:
    before = json.dumps(prompt)
    short = shortened(prompt, "bake", "832x1216", known)
    assert json.dumps(prompt) == before
    assert short["1"]["inputs"]["when_missing"] == "wait"
    assert short["2"]["inputs"]["steps"] == 2 and short["2"]["inputs"]["seed"] != 5
    advanced = short["3"]["inputs"]
    assert (advanced["steps"], advanced["start_at_step"], advanced["end_at_step"]) == (2, 0, 10000)
    assert short["4"]["inputs"]["step"] == 1
    assert node("PreviewAny", source=["2", 0]) in short.values() and "5" not in short
    assert short["6"]["inputs"] == {"width": 832, "height": 1216}
    assert short["7"] == prompt["7"] and short["8"] == prompt["8"] and short["9"] == prompt["9"]
    assert shortened(prompt, "explain", "", known)["1"]["inputs"]["when_missing"] == "eager"
    assert shortened(prompt, "explain", "", known)["6"] == prompt["6"]


TYPES = {
    "SaveImage": NodeType(True, ()),
    "SaveAnimatedWEBP": NodeType(True, ()),
    "SaveLatent": NodeType(True, ()),
    "CheckpointSave": NodeType(True, ()),
    "UnknownSaver": NodeType(True, ("STRING", "IMAGE")),
    "SamplerWithPreview": NodeType(True, ("LATENT", "IMAGE")),
    "PreviewAny": NodeType(True, ("STRING",)),
    "OneDiffSaver": NodeType(True, ()),
    "Loader": NodeType(False, ("MODEL", "CLIP", "VAE")),
    "Easy": NodeType(False, ("PIPE_LINE",)),
    "VAEDecode": NodeType(False, ("IMAGE",)),
    "TextEncode": NodeType(False, ("CONDITIONING",)),
}


@pytest.mark.parametrize(
    ("kind", "given", "links"),
    [
        ("SaveImage", {"images": ["decode", 0], "filename_prefix": "x"}, [["decode", 0]]),
        ("SaveAnimatedWEBP", {"images": ["decode", 0], "fps": 6}, [["decode", 0]]),
        ("SaveLatent", {"samples": ["sample", 0]}, [["sample", 0]]),
        ("CheckpointSave", {"model": ["load", 0], "vae": ["load", 2]}, [["load", 0], ["load", 2]]),
        ("UnknownSaver", {"a": ["decode", 0], "b": ["sample", 0], "c": [1, 2]}, [["decode", 0], ["sample", 0]]),
        ("UnknownSaver", {"name": "nothing is linked"}, []),
    ],
)
def test_a_node_that_ends_a_workflow_only_asks_for_its_inputs(kind: str, given: Any, links: list[Any]) -> None:
    rest = {
        "load": node("Loader"),
        "sample": node("SamplerWithPreview", model=["load", 0]),
        "decode": node("VAEDecode"),
    }
    short = shortened({**rest, "save": node(kind, **given)}, "bake", "", known)
    sinks = [short.pop(name) for name in [*short] if name not in rest]
    assert sinks == [node("PreviewAny", source=link) for link in links] and short == rest


def known(kind: str) -> NodeType:
    return TYPES.get(kind, NodeType(False, ()))


def test_one_that_shows_what_another_saved_keeps_neither() -> None:
    prompt = {"0": node("VAEDecode"), "1": node("UnknownSaver", a=["0", 0]), "2": node("PreviewAny", source=["1", 0])}
    short = shortened(prompt, "bake", "", known)
    assert [*short.values()] == [node("VAEDecode"), node("PreviewAny", source=["0", 0])]


@pytest.mark.parametrize(
    "prompt",
    [
        {"0": node("Loader"), "1": node("SamplerWithPreview", model=["0", 0])},  # which may call graphs
        {"0": node("Easy"), "1": node("SamplerWithPreview", pipe=["0", 0])},
        {"0": node("UnknownSaver"), "1": node("TextEncode", text=["0", 0])},  # whose output is needed
        {"0": node("Loader"), "1": node("OneDiffSaver", model=["0", 0])},
    ],
)
def test_what_is_needed_stays(prompt: Prompt) -> None:
    assert shortened(prompt, "bake", "", known) == prompt


def test_nodes_that_run_graphs() -> None:
    kinds = ["OneGraphCompileVAE", "OneGraphLoadCheckpoint", "OneDiffModelBooster", "SVDSpeedup"]
    assert nodes_of_ours({kind: node(kind) for kind in [*kinds, "KSampler", "OneGraphTestTextEncode"]}) == kinds


class Ran:
    """A server that has run a prompt of another workflow, whose node 2 is one of the pack's, and now runs this one."""

    def status(self) -> dict[str, Any]:
        counts = {"compiles": 0, "compiling": [], "background_compiles": 0, "deferred_compiles": 0}
        return {**counts, "all_runs": {"1": ["of this"], "2": ["of another"]}, "prompts": {"1": "this", "2": "another"}}

    def node_type(self, kind: str) -> NodeType:
        return known(kind)

    def queue(self, prompt: Prompt) -> str:
        return "this"

    def result(self, prompt_id: str) -> dict[str, Any]:
        return {"status_str": "success"}

    def stop(self, prompt_id: str) -> None:
        raise AssertionError("it has ended")


def test_runs_of_another_prompt_are_not_told(prompt: Prompt) -> None:
    told: list[dict[str, Any]] = []
    run_until_nothing_compiles(Ran(), "explain", prompt, "", lambda event, **facts: told.append({event: facts}))
    assert told[-1]["ran"]["runs"] == {"1": ["of this"]}


@pytest.mark.parametrize("wrapped", [False, True])
def test_both_ways_of_writing_a_workflow_are_read(wrapped: bool, prompt: Prompt, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps({"prompt": prompt} if wrapped else prompt))
    assert checked(read(tmp_path / "w.json"), "w.json") == prompt


@pytest.mark.parametrize("text", ["", "[]", "3", '{"nodes": [], "links": []}', '{"1": 2}', '{"1": {"inputs": {}}}'])
def test_what_is_no_workflow_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(JobError, match=r"w\.json"):
        checked(read(tmp_path / "w.json"), "w.json")
