"""The short form of a workflow: what `bake` and `explain` run in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onegraph.host.jobs.trial_runs import JobError, Prompt, nodes_of_ours, run_until_nothing_compiles, shortened
from onegraph.host.jobs.workflow_job import read


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


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
    short = shortened(prompt, "bake", "832x1216")
    assert json.dumps(prompt) == before
    assert short["1"]["inputs"]["when_missing"] == "wait"
    assert short["2"]["inputs"]["steps"] == 2 and short["2"]["inputs"]["seed"] != 5
    advanced = short["3"]["inputs"]
    assert (advanced["steps"], advanced["start_at_step"], advanced["end_at_step"]) == (2, 0, 10000)
    assert short["4"]["inputs"]["step"] == 1
    assert short["5"] == node("PreviewImage", images=["2", 0])
    assert short["6"]["inputs"] == {"width": 832, "height": 1216}
    assert short["7"] == prompt["7"] and short["8"] == prompt["8"] and short["9"] == prompt["9"]
    assert shortened(prompt, "explain")["1"]["inputs"]["when_missing"] == "eager"
    assert shortened(prompt, "explain")["6"] == prompt["6"]


def test_nodes_that_run_graphs() -> None:
    kinds = ["OneGraphCompileVAE", "OneGraphLoadCheckpoint", "OneDiffModelBooster", "SVDSpeedup"]
    assert nodes_of_ours({kind: node(kind) for kind in [*kinds, "KSampler", "OneGraphTestTextEncode"]}) == kinds


class Ran:
    """A server that has run a prompt of another workflow, whose node 2 is one of the pack's, and now runs this one."""

    def status(self) -> dict[str, Any]:
        counts = {"compiles": 0, "compiling": [], "background_compiles": 0, "deferred_compiles": 0}
        return {**counts, "all_runs": {"1": ["of this"], "2": ["of another"]}, "prompts": {"1": "this", "2": "another"}}

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
    assert read(tmp_path / "w.json") == prompt


@pytest.mark.parametrize("text", ["", "[]", "3", '{"nodes": [], "links": []}', '{"1": 2}', '{"1": {"inputs": {}}}'])
def test_what_is_no_workflow_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(JobError, match=r"w\.json"):
        read(tmp_path / "w.json")
