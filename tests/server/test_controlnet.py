"""A ControlNet through the real queue: graphs beside the files of net and model, which the next process restores."""

from __future__ import annotations

from pathlib import Path

import pytest
from headless import host, server, workflows
from support.comfyui import controlnet
from support.comfyui.shared_graphs import SharedGraphs

from .conftest import CHECKPOINT, SIDE, difference, txt2img

NET, OTHER = "tiny_net.safetensors", "tiny_other.safetensors"


@pytest.fixture(scope="module")
def nets(base: Path, environment: dict[str, str], shared_graphs: SharedGraphs) -> Path:
    """The base directory with two ControlNets; their graph and the UNet's with residuals are compiled already."""
    folder = base / "models/controlnet"
    for name, seed in ((NET, 5), (OTHER, 6)):
        controlnet.write_controlnet("tiny_sdxl", folder / name, seed)
    home = Path(environment["ONEGRAPH_HOME"])
    shared_graphs.give(home, base / "models/checkpoints" / CHECKPOINT, "sdxl steered")
    shared_graphs.give(home, folder / NET, "sdxl controlnet")
    return base


def steered(**applied: object) -> workflows.Prompt:
    """tests/workflows/controlnet on tiny files; `applied` are inputs of the node that applies the ControlNet."""
    prompt = workflows.without_text_encoder(workflows.load("controlnet"))
    for class_type, inputs in {
        "CheckpointLoaderSimple": {"ckpt_name": CHECKPOINT},
        "ControlNetLoader": {"control_net_name": NET},
        "EmptyLatentImage": {"width": SIDE, "height": SIDE},
        "KSampler": {"seed": 61, "steps": 3},
        "ControlNetApplyAdvanced": {"strength": 1.0, **applied},
    }.items():
        prompt = workflows.with_inputs(prompt, class_type, **inputs)
    (picture,) = workflows.nodes(prompt, "LoadImage")
    prompt[picture] = {"class_type": "EmptyImage", "inputs": workflows.PICTURE}
    return prompt


def test_both_graphs_are_beside_their_files(nets: Path) -> None:
    (graph,) = nets.glob("models/controlnet/tiny_net.graphs/*/controlnet/*/manifest.json")
    assert graph.parent.name.startswith("any-size-64-2048-float32-inductor")
    models = f"models/checkpoints/{Path(CHECKPOINT).stem}.graphs/*/unet/any-size-64-2048-with-residuals-*/manifest.json"
    assert len([*nets.glob(models)]) == 1


def test_a_new_process_steers_without_compiling(nets: Path, environment: dict[str, str]) -> None:
    with server.running(nets, host.comfyui_path(), env=environment) as running:
        plain = running.run(workflows.without_onegraph(txt2img(seed=61)))
        half = steered(strength=0.5, end_percent=0.7)
        both = workflows.with_controlnet(steered(), OTHER, "second", strength=0.6)
        for prompt, calls in ((steered(), 6), (half, 5), (both, 9)):
            reference = running.run(workflows.without_onegraph(prompt))
            assert difference(reference, plain) > 20
            before = running.status()["compiled_calls"]
            result = running.run(prompt)
            assert difference(reference, result) <= 2
            assert running.status()["compiled_calls"] - before == calls
            assert ("with residuals" in result.text("2")) == (prompt is not half)  # of its last call
            for node in workflows.nodes(prompt, "OneGraphCompileControlNet"):
                assert result.text(node).startswith(("restored in", "compiled, any size")), result.text(node)
        status = running.status()
        assert (status["compiles"], status["eager_calls"]) == (0, 0)
