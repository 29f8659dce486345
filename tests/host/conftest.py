"""The real ComfyUI in this process. Each tiny architecture is compiled once per run, beside its checkpoint."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import host, models

host.boot()

from onegraph.graph_cache.store import Store  # noqa: E402
from onegraph.host import resolutions, serve  # noqa: E402
from onegraph.host.families import unet as hook  # noqa: E402
from onegraph.runtime import engine as engine_module  # noqa: E402
from onegraph.runtime.engine import Counters, Engine  # noqa: E402

NODE = "7"


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
def graphs_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def fresh_process(graphs_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine as a new process would have it: nothing loaded, the store as earlier tests left it."""
    engine = Engine(Store(graphs_home))
    monkeypatch.setattr(engine_module, "_engine", engine)
    serve.last_runs.clear()
    resolutions._sizes.clear()
    serve._exact_compiles.clear()
    yield engine
    for graph in engine._graphs.values():
        if graph.held_bytes:
            graph.close()


@pytest.fixture
def counters(fresh_process: Engine) -> Counters:
    return fresh_process.counters


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> Any:
    return host.load(checkpoint())


@pytest.fixture(scope="session", autouse=True)
def trust_slow_graphs() -> Iterator[None]:
    """Tiny models gain little and machines are noisy: whether a graph is fast enough is tested in tests/integration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "SLOWER", 0.0)
        yield


@pytest.fixture(scope="session")
def compiled_once(checkpoint: Callable[..., Path], graphs_home: Path) -> None:
    """The tiny SDXL's any-size graph is in the store."""
    engine_module._engine = Engine(Store(graphs_home))
    host.sample(compiled(host.load(checkpoint())))
    assert engine_module._engine.counters.compiles == 1, serve.last_runs[NODE].text()
    assert engine_module._engine.counters.compiled_calls == 2, serve.last_runs[NODE].text()


needs_oneflow = pytest.mark.skipif(importlib.util.find_spec("oneflow") is None, reason="OneFlow is not installed")


@pytest.fixture(params=["inductor", pytest.param("oneflow", marks=needs_oneflow)])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "oneflow":
        request.getfixturevalue("compiled_once_by_oneflow")
    return name


@pytest.fixture(scope="session")
def compiled_once_by_oneflow(checkpoint: Callable[..., Path], graphs_home: Path) -> None:
    """The tiny SDXL's OneFlow graphs for 128x128 with CFG and for one half of it alone are in the store."""
    before, engine = engine_module._engine, Engine(Store(graphs_home))
    engine_module._engine = engine
    try:
        for cfg in (7.0, 1.0):
            host.sample(compiled(host.load(checkpoint()), backend="oneflow"), cfg=cfg)
    finally:
        engine_module._engine = before  # a test's own engine may be there already
    assert (engine.counters.compiles, engine.counters.eager_calls) == (2, 0), serve.last_runs[NODE].text()
    for graph in engine._graphs.values():
        graph.close()


def compiled(model: Any, **options: Any) -> Any:
    """The model as the node hands it on."""
    return hook.compile_model(model, hook.Options(**options), NODE)[0]


def said() -> str:
    """What the node said after the last run."""
    return serve.last_runs[NODE].text()
