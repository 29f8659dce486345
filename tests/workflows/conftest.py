"""One server for all cases, on small seeded models with the graphs that all layers share; it compiles nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from headless import host, models, server
from support.comfyui import controlnet
from support.comfyui.shared_graphs import SharedGraphs
from support.fuzz.judge import Bench
from support.fuzz.workflow import LORAS, checkpoint_file, controlnet_file, lora_file
from support.matrix.judge import Matrix

REPORT = host.ROOT / "build" / "faithfulness.json"
HAS_ONEFLOW = importlib.util.find_spec("oneflow") is not None


def write_models(folder: Path) -> None:
    """Make what the cases name, below ComfyUI's folder of models."""
    for family in ("sdxl", "sd15"):
        name = f"tiny_{family}"
        models.write_checkpoint(name, folder / "checkpoints" / checkpoint_file(family), seed=1, vae="both")
        models.write_checkpoint(name, folder / "checkpoints" / checkpoint_file(f"{family}_second"), seed=2)
        for number in range(LORAS):
            models.write_lora(name, folder / "loras" / lora_file(family, number), seed=3 + number)
        controlnet.write_controlnet(name, folder / "controlnet" / controlnet_file(family))
    models.write_checkpoint("tiny_refiner", folder / "checkpoints" / checkpoint_file("refiner"), seed=1)
    for family in ("inpaint", "ip2p"):
        models.write_checkpoint(f"tiny_{family}", folder / "checkpoints" / checkpoint_file(family), seed=1, vae="both")


@pytest.fixture(scope="session")
def matrix(
    tmp_path_factory: pytest.TempPathFactory, shared_graphs: SharedGraphs, pytestconfig: pytest.Config
) -> Iterator[Matrix]:
    """The server, with every graph that the cases need."""
    host.boot()
    root = tmp_path_factory.mktemp("workflows")
    base = server.prepare_base(root / "comfyui")
    write_models(base / "models")
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
        shared_graphs.give(root / "home", base / "models/checkpoints" / checkpoint_file(family), *kinds)
    shared_graphs.give(root / "home", base / "models/controlnet" / controlnet_file("sdxl"), "sdxl controlnet")
    env = {"ONEGRAPH_HOME": str(root / "home"), "ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS": "1"}
    bench = Bench(base, host.comfyui_path(), env)
    found = Matrix(bench)
    try:
        yield found
    finally:
        bench.close()
        if found.rows:
            found.write(REPORT)
