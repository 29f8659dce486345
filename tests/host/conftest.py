"""The real ComfyUI in this process. Most graphs are those that all layers share, beside the tiny checkpoints."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headless import host, models
from support.comfyui import controlnet
from support.comfyui.shared_graphs import SharedGraphs
from support.processes import warm_compiles
from support.scenes.process import new_process

host.boot()

from onegraph.host.calls import model_hook as hook  # noqa: E402
from onegraph.host.calls.vae import resolutions  # noqa: E402
from onegraph.host.show import status  # noqa: E402
from onegraph.runtime.counters import Counters  # noqa: E402
from onegraph.runtime.obtain.registry import Registry  # noqa: E402

NODE = "7"


@pytest.fixture(scope="session", autouse=True)
def compiling_processes() -> Iterator[None]:
    """Compiles start faster in `make test`; those of other layers start as a user's do."""
    with pytest.MonkeyPatch.context() as patch:
        warm_compiles.copies(patch)
        yield


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints and, beside them, the graphs of this run."""
    import folder_paths

    folder = tmp_path_factory.mktemp("models")
    known = folder_paths.folder_names_and_paths["checkpoints"]
    folder_paths.folder_names_and_paths["checkpoints"] = ([str(folder)], known[1])
    return folder


@pytest.fixture(scope="session")
def checkpoint(models_folder: Path) -> Callable[..., Path]:
    def write(name: str = "tiny_sdxl", seed: int = 1, vae: str = "decoder") -> Path:
        return models.write_checkpoint(name, models_folder / f"{name}_{seed}_{vae}.safetensors", seed, vae)

    return write


@pytest.fixture(scope="session")
def graphs_home(tmp_path_factory: pytest.TempPathFactory, shared_graphs: SharedGraphs) -> Path:
    return shared_graphs.adopt_user(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def fresh_process(graphs_home: Path) -> Iterator[Registry]:
    """A registry as a new process would have it: nothing loaded, the store as earlier tests left it.

    Tiny models gain little and machines are noisy: whether a graph is fast enough is tested in tests/integration.
    """
    with new_process(graphs_home) as fresh:
        status.last_runs.clear()
        resolutions._sizes.clear()
        yield fresh
        for graph in fresh.graphs():
            if graph.held_bytes:
                graph.close()


@pytest.fixture
def counters(fresh_process: Registry) -> Counters:
    return fresh_process.counters


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> Any:
    return host.load(checkpoint())


@pytest.fixture(scope="session")
def compiled_once(checkpoint: Callable[..., Path], graphs_home: Path, shared_graphs: SharedGraphs) -> None:
    """The tiny SDXL's any-size graph is in the store."""
    shared_graphs.give(graphs_home, checkpoint(), "sdxl")


@pytest.fixture(scope="session")
def vae_compiled_once(checkpoint: Callable[..., Path], graphs_home: Path, shared_graphs: SharedGraphs) -> None:
    """The VAE's decoder and encoder for any size are in the store."""
    shared_graphs.give(graphs_home, checkpoint(vae="both"), "decoder", "encoder")


@pytest.fixture
def vae(checkpoint: Callable[..., Path]) -> Any:
    return host.load_vae(checkpoint(vae="both"))


@pytest.fixture(scope="session")
def net_file(models_folder: Path) -> Path:
    """A ControlNet for the tiny SDXL."""
    return controlnet.write_controlnet("tiny_sdxl", models_folder / "controlnet" / "tiny_sdxl.safetensors")


@pytest.fixture
def net(net_file: Path) -> Any:
    return controlnet.load(net_file)


@pytest.fixture(scope="session")
def compiled_steered(
    compiled_once: None, checkpoint: Callable[..., Path], graphs_home: Path, shared_graphs: SharedGraphs
) -> None:
    """The tiny SDXL's graphs with and without residuals are in the store."""
    shared_graphs.give(graphs_home, checkpoint(), "sdxl steered")


needs_oneflow = pytest.mark.skipif(importlib.util.find_spec("oneflow") is None, reason="OneFlow is not installed")


BOTH_BACKENDS = ["inductor", pytest.param("oneflow", marks=needs_oneflow)]  # also in `make test`


@pytest.fixture(params=["inductor", pytest.param("oneflow", marks=[needs_oneflow, pytest.mark.full])])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "oneflow":
        request.getfixturevalue("compiled_once_by_oneflow")
    return name


@pytest.fixture(scope="session")
def compiled_once_by_oneflow(checkpoint: Callable[..., Path], graphs_home: Path, shared_graphs: SharedGraphs) -> None:
    """The tiny SDXL's OneFlow graphs for 128x128 with CFG and for one half of it alone are in the store."""
    shared_graphs.give(graphs_home, checkpoint(), "sdxl by oneflow")


def compiled(model: Any, **options: Any) -> Any:
    """The model as the node hands it on."""
    return hook.compile_model(model, hook.ModelNodeOptions(**options), NODE)[0]


def node_text() -> str:
    """What the node shows after the last run."""
    return status.last_runs[NODE].text()
