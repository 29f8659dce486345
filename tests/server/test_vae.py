"""A compiled VAE through the real server while the resolution changes with every queue item."""

from __future__ import annotations

import copy
from pathlib import Path

import psutil
import pytest
from headless import host, models, server, workflows

from .conftest import CHECKPOINT, difference, environment_of, needs_oneflow, txt2img

SIZES = [(64 + 8 * (i % 6), 64 + 8 * (i // 6)) for i in range(30)]
MOST_EXACT = 8  # as on the node's help page


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment_of(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base directory without a graph: how many are compiled is counted."""
    host.boot()
    folder = server.prepare_base(tmp_path_factory.mktemp("comfyui"))
    models.write_checkpoint("tiny_sdxl", folder / "models/checkpoints" / CHECKPOINT, seed=1)
    return folder


def image(width: int, height: int) -> workflows.Prompt:
    """One step without the UNet's node, so that only the VAE can compile."""
    prompt = workflows.without_onegraph(txt2img(width=width, height=height, seed=width * height, checkpoint=CHECKPOINT))
    return workflows.with_inputs(prompt, "KSampler", steps=1)


def tiled(prompt: workflows.Prompt) -> workflows.Prompt:
    """The prompt with its decode in tiles of 64 pixels."""
    changed = copy.deepcopy(prompt)
    for node in workflows.nodes(prompt, "VAEDecode"):
        choices = {"tile_size": 64, "overlap": 16, "temporal_size": 64, "temporal_overlap": 8}
        changed[node] = {"class_type": "VAEDecodeTiled", "inputs": {**prompt[node]["inputs"], **choices}}
    return changed


def vae_graphs(base: Path) -> int:
    return len(list(base.glob("models/checkpoints/*.graphs/*/vae_decoder/*/manifest.json")))


def resident_of(running: server.Server) -> int:
    return int(psutil.Process(running.pid).memory_info().rss)


@pytest.fixture(scope="module")
def references(running: server.Server) -> list[tuple[server.Outcome, int]]:
    """Each size's image without a node, and the bytes that the process occupied after it.

    ComfyUI's own decodes keep some megabytes for each new size (its allocator's), which are not the graphs'.
    """
    return [(running.run(image(*size)), resident_of(running)) for size in SIZES]


@pytest.mark.parametrize(
    ("rule", "backend", "graphs", "expected"),
    [
        ("skip", "inductor", 0, "uncompiled: skip: the resolution varies (30 so far)"),
        ("any size", "inductor", 1, "compiled, any size 16-2048"),
        # Any size's graph serves it.
        pytest.param("auto", "inductor", 0, "compiled, any size 16-2048", marks=pytest.mark.full),
        pytest.param(
            "auto", "oneflow", 0, "uncompiled: auto: the resolution varies (30 so far)",
            marks=[needs_oneflow, pytest.mark.full],
        ),
        pytest.param(
            "each size", "oneflow", MOST_EXACT,
            "uncompiled: 8 exact sizes were compiled already and 104x96 has no graph",
            marks=[needs_oneflow, pytest.mark.full],
        ),
    ],
)  # fmt: skip
def test_thirty_resolutions_compile_as_the_rule_says(
    rule: str,
    backend: str,
    graphs: int,
    expected: str,
    running: server.Server,
    references: list[tuple[server.Outcome, int]],
    base: Path,
) -> None:
    compiled, cached = running.status()["compiles"], vae_graphs(base)
    resident = []
    for size, (reference, _) in zip(SIZES, references, strict=True):
        result = running.run(workflows.with_compiled_vae(image(*size), dynamic_resolution=rule, backend=backend))
        assert result.status == "success"
        assert difference(reference, result) <= 2
        resident.append(resident_of(running))
    assert running.status()["compiles"] - compiled == graphs
    assert vae_graphs(base) - cached == graphs
    settled = max(graphs, 3)  # images after which no further graph comes
    of_eager = references[-1][1] - references[settled - 1][1]
    assert resident[-1] <= 1.1 * resident[settled - 1] + max(of_eager, 0)
    assert running.status()["runs"]["vae:decoder"]["text"].startswith(expected)
    print(f"{rule}, {backend}: {resident[settled - 1] >> 20} MiB after size {settled}, {resident[-1] >> 20} after 30")


@pytest.mark.full  # compiles in float16; tests/host has a VAE that overflows in float32
def test_a_vae_that_overflows_gives_no_black_image(base: Path, environment: dict[str, str]) -> None:
    checkpoint = base / "models/checkpoints" / "overflows.safetensors"
    models.write_overflowing(base / "models/checkpoints" / CHECKPOINT, checkpoint)
    prompt = workflows.with_inputs(image(64, 64), "CheckpointLoaderSimple", ckpt_name=checkpoint.name)
    with server.running(base, host.comfyui_path(), env=environment, options=("--fp16-vae",)) as half:
        black = half.run(prompt)
        assert black.images[0].max() == 0
        overflows = (
            "decoder: uncompiled: this VAE itself overflows in float16 on this image, so it ran in float32; "
            "start ComfyUI with --fp32-vae"
        )
        result = half.run(workflows.with_compiled_vae(prompt))
        assert result.text("vae") == overflows
        in_tiles = half.run(workflows.with_compiled_vae(tiled(prompt)))
        assert in_tiles.text("vae") == overflows
    with server.running(base, host.comfyui_path(), env=environment) as single:
        assert difference(single.run(prompt), result) <= 2
        assert difference(single.run(tiled(prompt)), in_tiles) <= 2
    assert result.images[0].std() > 20
