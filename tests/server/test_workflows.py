"""The example workflows through the real server: what each compiles, and what the next process restores.

Base and refiner share one VAE; their graphs are saved and restored in either order.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from headless import host, models, server, workflows
from support.comfyui.shared_graphs import SharedGraphs

from .conftest import difference, needs_oneflow

CHECKPOINT, REFINER = "wf_base.safetensors", "wf_refiner.safetensors"
STEPS, SWITCH = 4, 2


@pytest.fixture(scope="module")
def wf_base(base: Path) -> Path:
    for name, file in (("tiny_sdxl", CHECKPOINT), ("tiny_refiner", REFINER)):
        models.write_checkpoint(name, base / "models/checkpoints" / file, seed=1, vae="both")
    return base


@pytest.fixture
def encoder_compiled(wf_base: Path, environment: dict[str, str], shared_graphs: SharedGraphs) -> None:
    """The VAE's encoder is in the store, too."""
    shared_graphs.give(Path(environment["ONEGRAPH_HOME"]), wf_base / "models/checkpoints" / CHECKPOINT, "encoder")


def small(name: str) -> workflows.Prompt:
    """tests/workflows/<name> on the tiny checkpoints, an eighth of the size, in four steps."""
    prompt = workflows.with_checkpoints(workflows.load(name), CHECKPOINT, REFINER)
    for node in workflows.nodes(prompt, "EmptyLatentImage"):
        inputs = prompt[node]["inputs"]
        inputs["width"], inputs["height"] = inputs["width"] // 8, inputs["height"] // 8
    return workflows.with_steps(prompt, STEPS, SWITCH)


def graphs(home: Path) -> Counter[str]:
    """Count the cached graphs of each component."""
    return Counter(m.parent.parent.name for m in home.glob("graphs/*/*/manifest.json"))


def refiner_first(prompt: workflows.Prompt) -> workflows.Prompt:
    """The refiner alone, on an empty latent: whatever it needs is there before the base's."""
    (latent,) = workflows.nodes(prompt, "EmptyLatentImage")
    changed = workflows.rewired(prompt, [workflows.nodes(prompt, "KSamplerAdvanced")[0], 0], [latent, 0])
    base_decode = next(n for n in workflows.nodes(changed, "VAEDecode") if changed[n]["inputs"]["samples"][0] == latent)
    for node in [n for n, v in changed.items() if [base_decode, 0] in v["inputs"].values()]:
        del changed[node]
    return changed


@pytest.fixture(scope="module")
def reference(wf_base: Path, environment: dict[str, str]) -> server.Outcome:
    with server.running(wf_base, host.comfyui_path(), env=environment) as running:
        return running.run(workflows.without_onegraph(small("base_refiner")))


@pytest.mark.parametrize(
    ("saved", "backend", "refiner_given"),
    [
        pytest.param("refiner first", "oneflow", False, marks=[needs_oneflow, pytest.mark.full]),
        pytest.param("base first", "inductor", False, marks=pytest.mark.full),
        pytest.param("base first", "inductor", True, marks=pytest.mark.full),
    ],
)
def test_base_and_refiner_share_a_vae_in_either_order(
    saved: str,
    backend: str,
    refiner_given: bool,
    wf_base: Path,
    environment: dict[str, str],
    reference: server.Outcome,
    shared_graphs: SharedGraphs,
) -> None:
    """Graphs that tests before have made for the same architectures beside other checkpoints are taken over."""
    home = Path(environment["ONEGRAPH_HOME"])
    for cached in (*wf_base.glob("models/checkpoints/wf_*.graphs"), home / "graphs"):
        shutil.rmtree(cached, ignore_errors=True)
    if refiner_given:  # an earlier process of the user has compiled the refiner
        shared_graphs.give(home, wf_base / "models/checkpoints" / REFINER, "refiner")
    prompt = workflows.with_inputs(small("base_refiner"), "OneGraphCompileModel", backend=backend)
    rule = "each size" if backend == "oneflow" else "auto"  # OneFlow's auto waits until a size comes up again
    prompt = workflows.with_inputs(prompt, "OneGraphCompileVAE", backend=backend, dynamic_resolution=rule)
    for number, order in enumerate((saved, "base first", "refiner first")):
        with server.running(wf_base, host.comfyui_path(), env=environment) as running:
            if order == "refiner first":
                assert running.run(refiner_first(prompt)).status == "success"
            result = running.run(prompt)
            status = running.status()
        assert result.status == "success", result.error
        assert difference(reference, result) <= workflows.cases("base_refiner")["largest_difference_255"]
        assert status["eager_calls"] == 0, status["reasons"]
        assert status["compiles"] + status["restores"] == 3
        assert bool(status["compiles"]) == (number == 0 and not refiner_given)
        assert graphs(home) == {"unet": 2, "vae_decoder": 1}


@pytest.mark.usefixtures("encoder_compiled")
@pytest.mark.parametrize(
    ("name", "vae"), [("img2img", "auto"), ("eight_sizes", "auto"), ("eight_sizes", "skip"), ("txt2img", "")]
)
def test_a_workflow_uses_its_expected_graphs(name: str, vae: str, wf_base: Path, environment: dict[str, str]) -> None:
    """Each in its own process, on the store that the test before has filled. `vae`: the rule of its Compile VAE."""
    prompt, cases = small(name), workflows.cases(name)
    if vae:
        prompt = workflows.with_inputs(prompt, "OneGraphCompileVAE", dynamic_resolution=vae)
    with server.running(wf_base, host.comfyui_path(), env=environment) as running:
        if name == "img2img":
            source = running.run(workflows.without_onegraph(small("base_refiner"))).files[0]
            shutil.copy(wf_base / "output" / source, wf_base / "input" / "example.png")
        eager = running.run(workflows.without_onegraph(prompt))
        result = running.run(prompt)
        status = running.status()
    assert (eager.status, result.status) == ("success", "success"), (eager.error, result.error)
    assert difference(eager, result) <= cases["largest_difference_255"]
    taken = status["compiles"] + status["restores"]
    assert taken == cases["graphs"]["unet"] + (0 if vae == "skip" else cases["graphs"]["vae"])
    assert status["compiles"] == 0
    reasons = set(status["reasons"])
    assert all(reason.startswith("skip: ") for reason in reasons)
    assert bool(reasons) == (vae == "skip")
