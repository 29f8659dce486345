"""One server for all cases, on small seeded models with the graphs that all layers share; it compiles nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from headless import host, models, server
from support.comfyui.shared_graphs import SharedGraphs
from support.matrix.judge import Matrix
from support.scenes.bench import running, write_models
from support.scenes.workflow import checkpoint_file, controlnet_file

REPORT = host.ROOT / "build" / "faithfulness.json"
HAS_ONEFLOW = importlib.util.find_spec("oneflow") is not None


@pytest.fixture(scope="session")
def matrix(
    tmp_path_factory: pytest.TempPathFactory, shared_graphs: SharedGraphs, pytestconfig: pytest.Config
) -> Iterator[Matrix]:
    """The server, with every graph that the cases need."""
    host.boot()
    root = tmp_path_factory.mktemp("workflows")
    folder = server.prepare_base(root / "comfyui") / "models"
    write_models(folder)
    for family in ("inpaint", "ip2p"):
        models.write_checkpoint(f"tiny_{family}", folder / "checkpoints" / checkpoint_file(family), seed=1, vae="both")
    needed = {
        "sdxl": ["sdxl", "sdxl steered", "decoder", "encoder"],
        "sd15": ["sd15"],
        "refiner": ["refiner"],
        "inpaint": ["inpaint"],
    }
    if HAS_ONEFLOW:
        needed["sdxl"].append("sdxl by oneflow")
    if pytestconfig.option.markexpr != "not full":
        needed["ip2p"] = ["ip2p"]
        needed["sd15"].append("sd15 steered")
        needed["sdxl"].append("sdxl adapted")
    for family, kinds in needed.items():
        shared_graphs.give(root / "home", folder / "checkpoints" / checkpoint_file(family), *kinds)
    shared_graphs.give(root / "home", folder / "controlnet" / controlnet_file("sdxl"), "sdxl controlnet")
    with running(root) as bench:
        found = Matrix(bench)
        yield found
    if found.rows:
        found.write(REPORT)
