"""Nodes that copy a compiled VAE, change it or replace its first_stage_model, through the real server."""

from __future__ import annotations

from typing import Any

from headless import server, workflows

from .conftest import difference, txt2img


def image(seed: int, *chain: dict[str, Any]) -> workflows.Prompt:
    """One step without the UNet's node; `chain` are nodes between Compile VAE (OneGraph) and the decode."""
    prompt = workflows.without_onegraph(txt2img(seed=seed))
    prompt = workflows.with_compiled_vae(workflows.with_inputs(prompt, "KSampler", steps=1))
    last = "vae"
    for number, node in enumerate(chain):
        name = f"after{number}"
        prompt = workflows.rewired(prompt, [last, 0], [name, 0])
        prompt[name] = {**node, "inputs": {**node["inputs"], "vae": [last, 0]}}
        last = name
    return prompt


CIRCULAR_COPY = {"class_type": "OneGraphTestSeamlessVAE", "inputs": {"way": "copy"}}
REPLACE = {"class_type": "OneGraphTestReplaceVAEModel", "inputs": {}}
SELECT_DEVICE = {"class_type": "SelectVAEDevice", "inputs": {"device": "default"}}


def test_only_the_circular_copy_of_a_vae_is_circular(running: server.Server) -> None:
    plain = running.run(image(81))
    assert plain.text("vae").startswith(("decoder: compiled", "decoder: restored")), plain.error
    prompt = workflows.with_inputs(image(81, CIRCULAR_COPY), "OneGraphCompileVAE", when_missing="eager")
    result = running.run(prompt)
    assert result.status == "success", result.error
    assert difference(running.run(workflows.without_onegraph(prompt)), result) <= 2
    assert difference(plain, result) > 20
    assert difference(running.run(workflows.without_onegraph(image(82))), running.run(image(82))) <= 2


def test_replacing_first_stage_model_is_reported(running: server.Server) -> None:
    for number, node in enumerate((REPLACE, SELECT_DEVICE)):
        prompt = image(83 + number, node)
        result = running.run(prompt)
        assert result.status == "success", result.error
        assert difference(running.run(workflows.without_onegraph(prompt)), result) == 0
        assert result.text("vae") == "decoder: uncompiled: another node replaced this VAE's first_stage_model"
