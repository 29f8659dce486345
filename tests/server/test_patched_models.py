"""Nodes that change a model in place or replace the host's functions, through the real server."""

from __future__ import annotations

from typing import Any

import pytest
from headless import server, workflows

from .conftest import difference, node_of, txt2img


def patched(class_type: str, **inputs: Any) -> workflows.Prompt:
    """txt2img with a node of that class between the loader and Compile Model (OneGraph)."""
    prompt = txt2img(when_missing="eager" if inputs.get("mode") == "circular" else "wait")
    (loader,) = workflows.nodes(prompt, "CheckpointLoaderSimple")
    prompt = workflows.rewired(prompt, [loader, 0], ["patch", 0])
    prompt["patch"] = {"class_type": class_type, "inputs": {"model": [loader, 0], **inputs}}
    return prompt


CASES: list[tuple[str, dict[str, Any], dict[str, Any] | None, str]] = [
    ("OneGraphTestSeamless", {"mode": "circular"}, {"mode": "zeros"}, "differ in architecture"),
    (
        "OneGraphTestReplaceAttention",
        {"mode": "replaced"},
        {"mode": "off"},
        "another custom node replaced attention.optimized_attention (onegraph_testing)",
    ),
    ("OneGraphTestForwardReplaced", {"factor": 0.8}, None, "another custom node replaced"),
]


@pytest.mark.parametrize(("class_type", "on", "off", "reason"), CASES, ids=[case[0] for case in CASES])
def test_a_model_patched_between_two_prompts(
    class_type: str, on: dict[str, Any], off: dict[str, Any] | None, reason: str, running: server.Server
) -> None:
    plain = running.run(txt2img())
    assert plain.status == "success", plain.error
    before = running.status()
    result = running.run(patched(class_type, **on))
    status = running.status()
    reference = running.run(workflows.without_onegraph(patched(class_type, **on)))
    assert (result.status, reference.status) == ("success", "success"), (result.error, reference.error)
    assert difference(reference, plain) > 20
    assert difference(result, reference) == 0
    assert result.text(node_of(txt2img())).startswith("uncompiled: ")
    assert reason in result.text(node_of(txt2img()))
    assert status["eager_calls"] - before["eager_calls"] == 3
    if off is not None:
        again = running.run(patched(class_type, **off))
        assert difference(again, plain) <= 2
        assert running.status()["eager_calls"] == status["eager_calls"]
    assert running.status()["compiles"] == before["compiles"]
