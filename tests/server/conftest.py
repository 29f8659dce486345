"""The real headless server. One base directory per run, with the graphs of one workflow, serves most modules.

Modules depend on no other module: one that needs an empty store, or harms one, has a base directory of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headless import host, models, server, workflows
from support.comfyui import installation
from support.comfyui.installation import CHECKPOINT as CHECKPOINT
from support.comfyui.installation import environment_of as environment_of
from support.comfyui.shared_graphs import SharedGraphs

SECOND = "tiny_sdxl_second.safetensors"
LORA = "tiny_lora.safetensors"
SIDE = 128


def write_base(folder: Path) -> Path:
    """Make a ComfyUI base directory with two tiny checkpoints of one architecture, a LoRA and no graph."""
    installation.write_base(folder, {CHECKPOINT: ("tiny_sdxl", 1), SECOND: ("tiny_sdxl", 2)})
    models.write_lora("tiny_sdxl", folder / "models/loras" / LORA)
    return folder


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, shared_graphs: SharedGraphs) -> dict[str, str]:
    return environment_of(shared_graphs.adopt_user(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], shared_graphs: SharedGraphs) -> Path:
    """A base directory where an earlier process compiled what `txt2img()` needs with each backend, and a VAE."""
    folder = write_base(tmp_path_factory.mktemp("comfyui"))
    kinds = ["sdxl", *(["sdxl by oneflow"] if HAS_ONEFLOW else []), "decoder"]
    shared_graphs.give(Path(environment["ONEGRAPH_HOME"]), folder / "models/checkpoints" / CHECKPOINT, *kinds)
    return folder


@pytest.fixture(scope="module")
def running(base: Path, environment: dict[str, str]) -> Iterator[server.Server]:
    """A server process for the tests of one module; a new module starts a new process on the same base."""
    with server.running(base, host.comfyui_path(), env=environment) as running:
        yield running


HAS_ONEFLOW = importlib.util.find_spec("oneflow") is not None
needs_oneflow = pytest.mark.skipif(not HAS_ONEFLOW, reason="OneFlow is not installed")
BACKENDS = ["inductor", pytest.param("oneflow", marks=needs_oneflow)]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def txt2img(
    *,
    seed: int = 1,
    width: int = SIDE,
    height: int = SIDE,
    batch: int = 1,
    cfg: float = 7.0,
    text: str = "a lighthouse",
    checkpoint: str = CHECKPOINT,
    **node: Any,
) -> workflows.Prompt:
    """tests/workflows/txt2img on a tiny checkpoint; `node` are inputs of Compile Model (OneGraph)."""
    prompt = workflows.without_text_encoder(workflows.load("txt2img"))
    prompt = workflows.with_inputs(prompt, "CheckpointLoaderSimple", ckpt_name=checkpoint)
    prompt = workflows.with_inputs(prompt, "EmptyLatentImage", width=width, height=height, batch_size=batch)
    prompt = workflows.with_inputs(prompt, "KSampler", seed=seed, steps=3, cfg=cfg)
    sampler = workflows.nodes(prompt, "KSampler")[0]
    prompt[prompt[sampler]["inputs"]["positive"][0]]["inputs"]["text"] = text
    return workflows.with_inputs(prompt, "OneGraphCompileModel", **node) if node else prompt


def node_of(prompt: workflows.Prompt) -> str:
    return workflows.nodes(prompt, "OneGraphCompileModel")[0]


def difference(a: server.Outcome, b: server.Outcome) -> int:
    """The largest difference of two results' images, of 255."""
    assert len(a.images) == len(b.images) > 0
    return max(int(abs(x.astype(int) - y).max()) for x, y in zip(a.images, b.images, strict=True))


def graph_folders(base: Path) -> list[Path]:
    return sorted(p.parent for p in base.glob("models/checkpoints/*.graphs/*/unet/*/manifest.json"))
