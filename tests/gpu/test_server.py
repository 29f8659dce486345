"""ComfyUI's server on a GPU as it starts by default, which is with DynamicVRAM: images with the nodes against without.

The graphs are those that this process compiled without DynamicVRAM, so the server finds them and compiles nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host, server, workflows
from support.processes import pressure

from .conftest import CHECKPOINT, FLOAT8, LORA, REFINER, Compiles
from .images import SIDE, assert_other, assert_same, txt2img

pytestmark = pytest.mark.usefixtures("vae_graphs")


@pytest.fixture(scope="module", autouse=True)
def unet_compiled(unet_graph: Callable[[torch.dtype], None]) -> None:
    unet_graph(torch.float16)


@pytest.fixture(scope="module")
def start(base: Path, environment: dict[str, str]) -> Callable[[], Any]:
    """Start a server with default options, on the base directory of all tests."""
    return lambda: server.running(base, host.comfyui_path(), env=environment, device=())


@pytest.fixture(scope="module")
def running(start: Callable[[], Any]) -> Iterator[server.Server]:
    with start() as ready:
        yield ready


def both(
    running: server.Server, prompt: workflows.Prompt, mean_only: float | None = None
) -> tuple[server.Outcome, server.Outcome]:
    """The workflow without OneGraph, and as it is; the same image."""
    eager, result = running.run(workflows.without_onegraph(prompt)), running.run(prompt)
    assert_same(result, eager, mean_only)
    return eager, result


def counted(running: server.Server) -> tuple[int, int]:
    status = running.status()
    return status["compiles"], status["eager_calls"]


def test_the_image_is_eagers_and_nothing_compiles(running: server.Server) -> None:
    first, result = both(running, txt2img())
    assert result.text("2").startswith("restored in "), result.texts
    assert result.text("vae").startswith("decoder: restored in "), result.texts
    other, result = both(running, txt2img(seed=2))
    assert result.text("2").startswith("compiled, any size")
    assert_other(first, other)
    assert counted(running) == (0, 0), running.status()["reasons"]


def test_many_steps_and_another_size_in_between(running: server.Server) -> None:
    """Under DynamicVRAM, too, calls are captured and replayed from run to run."""
    before, replayed = counted(running), running.status()["replayed_calls"]
    for seed, side, steps in ((11, 512, 12), (12, 512, 12), (13, 384, 12), (14, 512, 12)):
        both(running, txt2img(seed=seed, side=side, steps=steps))
    both(running, txt2img(seed=15, batch=2, steps=12))
    assert counted(running) == before
    # Of 36 calls at 512x512, the first and the captured one are not replays.
    assert running.status()["replayed_calls"] - replayed >= 30


def test_a_lora_on_weaker_and_off(running: server.Server) -> None:
    before, seen = counted(running), []
    for strength in (1.0, 0.5, 0.0, 1.0):
        prompt = txt2img(seed=21, steps=6)
        seen.append(both(running, workflows.with_lora(prompt, LORA, strength) if strength else prompt)[1])
    assert_other(seen[0], seen[1])
    assert_other(seen[1], seen[2])
    assert_same(seen[0], seen[3])
    assert counted(running) == before


def test_an_image_encoded_and_decoded_again(running: server.Server) -> None:
    prompt = txt2img(seed=31)
    (decode,) = workflows.nodes(prompt, "VAEDecode")
    prompt = workflows.with_inputs(prompt, "OneGraphCompileVAE", parts="both")
    prompt = workflows.rewired(prompt, [decode, 0], ["again", 0])
    prompt["moments"] = {"class_type": "VAEEncode", "inputs": {"pixels": [decode, 0], "vae": ["vae", 0]}}
    prompt["again"] = {"class_type": "VAEDecode", "inputs": {"samples": ["moments", 0], "vae": ["vae", 0]}}
    before = counted(running)
    # Three passes through a VAE of random weights in bfloat16: 3.5 of 255 seen, another seed is at 60. test_vae.py
    # compares such a chain with float32.
    both(running, prompt, mean_only=8.0)
    assert counted(running) == before


def test_base_and_refiner_share_one_vae(running: server.Server, compiles: Compiles) -> None:
    compiles.wait("refiner")
    prompt = workflows.with_checkpoints(workflows.load("base_refiner"), CHECKPOINT, REFINER)
    prompt = workflows.with_inputs(prompt, "EmptyLatentImage", width=SIDE, height=SIDE)
    prompt = workflows.with_inputs(prompt, "OneGraphCompileVAE", dynamic_resolution="any size")
    prompt = workflows.with_steps(prompt, 8, 5)
    before = counted(running)
    for seed in (35, 36):
        _, result = both(running, workflows.with_inputs(prompt, "KSamplerAdvanced", noise_seed=seed))
        assert len(result.images) == 2
    assert counted(running) == before, running.status()["reasons"]


def test_after_free_everything_comes_back(running: server.Server) -> None:
    before = counted(running)
    for unload in ({"unload_models": True}, {"unload_models": True, "free_memory": True}):
        running.post("/free", unload)
        time.sleep(1.5)  # the queue's thread does it when it wakes
        both(running, txt2img(seed=41 + len(unload)))
    assert counted(running) == before


def test_float8_weights_give_the_image_of_eager(running: server.Server) -> None:
    compiles = running.status()["compiles"]
    _, result = both(running, txt2img(seed=51, checkpoint=FLOAT8))
    print("float8:", result.text("2"))
    assert result.text("2").startswith(("uncompiled: ", "compiled", "restored"))
    assert running.status()["compiles"] - compiles <= 1
    both(running, txt2img(seed=52, checkpoint=CHECKPOINT))


def test_an_exact_size_compiles_under_dynamic_vram(running: server.Server) -> None:
    compiles, eager_calls = counted(running)
    for seed in (61, 62):
        result = both(running, txt2img(seed=seed, side=320, shapes="exact"))[1]
        assert "320x320 batch 2 77 tokens" in result.text("2")
    assert counted(running) == (compiles + 1, eager_calls)


@pytest.mark.parametrize("gib", [2.0, 0.7])
def test_little_vram_is_free(gib: float, running: server.Server) -> None:
    """The image is right whether the graph or eager makes it, and afterwards the graph is back."""
    running.post("/free", {"unload_models": True, "free_memory": True})
    time.sleep(1.5)
    with pressure.leaving(gib) as free:
        for seed in (71, 72):
            result = running.run(txt2img(seed=seed))
            eager = running.run(workflows.without_onegraph(txt2img(seed=seed)))
            print(f"{free:.2f} GiB free: {result.text('2')}; {result.text('vae')}")
            assert_same(result, eager)
    _, result = both(running, txt2img(seed=73))
    assert result.text("2").startswith("compiled, any size")


def test_a_restart_compiles_nothing(start: Callable[[], Any], running: server.Server) -> None:
    before = running.run(txt2img(seed=81))
    with start() as again:
        result = again.run(txt2img(seed=81))
        assert_same(result, before)
        assert result.text("2").startswith("restored in "), result.texts
        assert again.status()["preloads"] >= 2  # both nodes' graphs, while the server read the weights
        _, result = both(again, workflows.with_lora(txt2img(seed=82), LORA, 1.0))
        assert result.text("2").startswith("compiled, any size")
        assert counted(again) == (0, 0), again.status()["reasons"]
