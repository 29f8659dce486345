"""What Load Checkpoint (OneGraph) shows of two samplings and four decodes in one prompt, and of the next prompt."""

from __future__ import annotations

from headless import server, workflows

from .conftest import txt2img


def two_images(seed: int, decodes: int) -> workflows.Prompt:
    """Load Checkpoint (OneGraph), two samplings of different seeds, so many decodes of the second one's result."""
    prompt = workflows.without_onegraph(txt2img(seed=seed))
    (loader,), (sampler,) = workflows.nodes(prompt, "CheckpointLoaderSimple"), workflows.nodes(prompt, "KSampler")
    (decode,), (save,) = workflows.nodes(prompt, "VAEDecode"), workflows.nodes(prompt, "SaveImage")
    name = prompt[loader]["inputs"]["ckpt_name"]
    choices = {"backend": "auto", "shapes": "any size", "when_missing": "wait", "parts": "decoder"}
    inputs = {"ckpt_name": name, **choices, "dynamic_resolution": "auto"}
    prompt[loader] = {"class_type": "OneGraphLoadCheckpoint", "inputs": inputs}
    first = prompt[sampler]["inputs"]
    prompt["again"] = {"class_type": "KSampler", "inputs": {**first, "seed": seed + 1, "latent_image": [sampler, 0]}}
    for number in range(decodes):
        # A decode of its own for each: equal nodes would be one.
        samples = {"class_type": "RepeatLatentBatch", "inputs": {"samples": ["again", 0], "amount": number + 1}}
        prompt[f"samples{number}"] = samples
        vae_decode = {"class_type": "VAEDecode", "inputs": {"samples": [f"samples{number}", 0], "vae": [loader, 2]}}
        prompt[f"decode{number}"] = vae_decode
        prompt[f"save{number}"] = {
            "class_type": "SaveImage",
            "inputs": {**prompt[save]["inputs"], "images": [f"decode{number}", 0]},
        }
    del prompt[decode], prompt[save]
    return prompt


def test_load_checkpoint_shows_every_run_of_the_prompt(running: server.Server) -> None:
    prompt = two_images(seed=91, decodes=4)
    (node,) = workflows.nodes(prompt, "OneGraphLoadCheckpoint")
    first = running.run(prompt)
    assert first.status == "success", first.error
    lines = first.text(node).splitlines()
    model, model_again, decoder, decoder_again = lines
    assert model.startswith(("model: restored in", "model: compiled in"))
    assert model_again.startswith("model: compiled, any size")
    assert decoder.startswith(("decoder: restored in", "decoder: compiled in"))
    assert decoder_again.startswith("decoder: compiled, any size")
    assert lines[-1].endswith(" (3 runs)")
    status = running.status()
    assert status["said"][node] == first.text(node)
    assert [run["part"] for run in status["all_runs"][node]] == ["", "", *["decoder"] * 4]
    assert status["runs"][node] == {k: v for k, v in status["all_runs"][node][1].items() if k != "part"}
    assert status["runs"][f"{node}:decoder"]["text"] == status["all_runs"][node][-1]["text"]

    second = running.run(two_images(seed=93, decodes=1))  # the node is cached and does not execute
    lines = second.text(node).splitlines()
    assert len(lines) == 2 and lines[0].startswith("model: compiled, any size") and lines[0].endswith(" (2 runs)")
    assert lines[1].startswith("decoder: compiled, any size") and not lines[1].endswith("runs)")
    assert len(running.status()["all_runs"][node]) == 3
