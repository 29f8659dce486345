"""What programs read of a prompt when it is over: in ComfyUI's history, and in the status route by the prompt's id."""

from __future__ import annotations

from typing import Any

from headless import server

from .conftest import node_of, txt2img


def listed(outcome: server.Outcome, node: str) -> list[dict[str, Any]]:
    """The results that a node has in the history of a prompt."""
    (results,) = outcome.outputs[node]["onegraph"]
    return list(results)


def of_prompt(outcome: server.Outcome, node: str) -> dict[str, Any]:
    (result,) = (one for one in listed(outcome, node) if one["prompt_id"] == outcome.prompt_id)
    return dict(result)


def test_the_history_tells_whether_a_prompt_ran_compiled(running: server.Server) -> None:
    prompt = txt2img(seed=301, when_missing="wait")
    node = node_of(prompt)
    first = running.run(prompt)
    assert first.status == "success", first.error
    result = of_prompt(first, node)
    assert result["state"] in ("restored", "compiled") and result["text"] == first.text(node)
    assert (result["calls"], result["compiled_calls"], result["eager_calls"], result["reasons"]) == (3, 3, 0, [])
    assert result["speedup"] is None or result["speedup"] > 0

    again = running.run(txt2img(seed=302, when_missing="wait"))  # the node is cached and does not execute
    assert of_prompt(again, node)["compiled_calls"] == 3
    assert listed(again, node)[-2:] == [result, of_prompt(again, node)]

    unchanged = running.run(txt2img(seed=302, when_missing="wait"))  # nothing runs: the image is the one before
    assert unchanged.images and unchanged.prompt_id not in {one["prompt_id"] for one in listed(unchanged, node)}
    assert listed(unchanged, node)[-1] == of_prompt(again, node)

    for outcome in (first, again):
        told = running.get(f"/onegraph/status?prompt_id={outcome.prompt_id}")
        assert told == {"prompt_id": outcome.prompt_id, "ended": True, "nodes": {node: of_prompt(outcome, node)}}
    for prompt_id in (unchanged.prompt_id, "nobody's"):
        assert running.get(f"/onegraph/status?prompt_id={prompt_id}")["nodes"] == {}
    assert "compiled_calls" in running.status()  # without an id: the process


def test_the_history_tells_why_a_prompt_ran_uncompiled(running: server.Server) -> None:
    prompt = txt2img(seed=303, width=64, height=192, shapes="exact", when_missing="eager")
    outcome = running.run(prompt)
    result = of_prompt(outcome, node_of(prompt))
    assert (result["state"], result["calls"], result["compiled_calls"], result["eager_calls"]) == ("eager", 3, 0, 3)
    assert [(why["code"], why["calls"]) for why in result["reasons"]] == [("no_graph", 3)]
    assert result["reasons"][0]["text"] in result["text"]


def test_images_alone_count_as_outputs(running: server.Server) -> None:
    outcome = running.run(txt2img(seed=304, when_missing="wait"))
    job = running.get(f"/api/jobs/{outcome.prompt_id}")
    assert job["outputs_count"] == len(outcome.images) == 1


def test_the_log_tells_of_changes_alone(running: server.Server) -> None:
    """Of 19 prompts of one workflow that run alike, the lines of the first."""

    def lines() -> list[str]:
        return [line for line in running.log.read_text().splitlines() if "OneGraph: node " in line]

    def run(seed: int) -> str:
        prompt = txt2img(seed=seed, width=192, height=64, shapes="exact", when_missing="eager")
        assert running.run(prompt).status == "success"
        return node_of(prompt)

    node = run(310)
    first = lines()
    assert f"OneGraph: node {node}: " in first[-1] and "the graphs cached for this model differ in" in first[-1]
    assert "WARN" not in first[-1]
    for seed in range(311, 329):
        run(seed)
    assert lines() == first
