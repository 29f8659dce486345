"""A compiled VAE through the real server while the resolution changes with every queue item."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import host, models, server, workflows

from .conftest import difference, txt2img

BASE = "vae_base.safetensors"
SIZES = [(64 + 8 * (i % 4), 64 + 8 * (i // 4)) for i in range(12)]


@pytest.fixture(scope="module")
def vae_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    host.boot()
    folder = server.prepare_base(tmp_path_factory.mktemp("vae"))
    models.write_checkpoint("tiny_sdxl", folder / "models/checkpoints" / BASE, seed=1)
    return folder


@pytest.fixture(scope="module")
def running(vae_base: Path, environment: dict[str, str]) -> Iterator[server.Server]:
    with server.running(vae_base, host.comfyui_path(), env=environment) as running:
        yield running


def with_vae(prompt: workflows.Prompt, **node: Any) -> workflows.Prompt:
    """Compile VAE (OneGraph) between the loader and VAE Decode."""
    decode = workflows.nodes(prompt, "VAEDecode")[0]
    inputs = {"parts": "decoder", "dynamic_resolution": "auto", "when_missing": "wait", "backend": "auto", **node}
    prompt["vae"] = {
        "class_type": "OneGraphCompileVAE",
        "inputs": {"vae": prompt[decode]["inputs"]["vae"], **inputs},
    }
    prompt[decode]["inputs"]["vae"] = ["vae", 0]
    return prompt


def image(width: int, height: int) -> workflows.Prompt:
    """One step without the UNet's node, so that only the VAE can compile."""
    prompt = workflows.without_onegraph(txt2img(width=width, height=height, seed=width * height, checkpoint=BASE))
    return workflows.with_inputs(prompt, "KSampler", steps=1)


def vae_graphs(base: Path) -> int:
    return len(list(base.glob("models/checkpoints/*.graphs/*/vae_decoder/*/manifest.json")))


@pytest.fixture(scope="module")
def references(running: server.Server) -> list[server.Outcome]:
    return [running.run(image(*size)) for size in SIZES]


@pytest.mark.parametrize(
    ("rule", "compiles", "graphs"),
    [("skip", 0, 0), ("any size", 1, 1), ("auto", 0, 1)],
)
def test_changing_resolutions_compile_as_often_as_the_rule_promises(
    rule: str, compiles: int, graphs: int, running: server.Server, references: list[server.Outcome], vae_base: Path
) -> None:
    before = running.status()["compiles"]
    resident = []
    for size, reference in zip(SIZES, references, strict=True):
        result = running.run(with_vae(image(*size), dynamic_resolution=rule))
        assert result.status == "success"
        assert difference(reference, result) <= 2
        resident.append(psutil.Process(running.pid).memory_info().rss)
    assert running.status()["compiles"] - before == compiles
    assert vae_graphs(vae_base) == graphs
    assert resident[-1] <= 1.1 * resident[2]
    text = running.status()["runs"]["vae:decoder"]["text"]
    assert text.startswith("eager: skip: the resolution varies" if rule == "skip" else "compiled, any size 16-2048")
