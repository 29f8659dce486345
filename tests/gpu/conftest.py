"""The real ComfyUI on a GPU, in this process and as a server. All tests share one base directory and its graphs.

Without a GPU every test is skipped, visibly; nothing here imports ComfyUI before a test runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import host, models, server

CHECKPOINT, FLOAT8, LORA = "tiny_sdxl.safetensors", "tiny_sdxl_fp8.safetensors", "tiny_lora.safetensors"
NODE = "7"
# Relative L2 of one UNet call against eager; SDXL itself is at 1.5e-3 in float16. A wrong weight is above 0.1.
BOUNDS = {torch.float16: 6e-3, torch.bfloat16: 4e-2}
DTYPES = tuple(BOUNDS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a GPU: torch.cuda is not available here"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ComfyUI base directory with a tiny checkpoint, the same in float8, and a LoRA; this process uses it, too."""
    host.boot(cpu=False)
    import folder_paths

    folder = server.prepare_base(tmp_path_factory.mktemp("comfyui"))
    checkpoints = folder / "models" / "checkpoints"
    known = folder_paths.folder_names_and_paths["checkpoints"]
    folder_paths.folder_names_and_paths["checkpoints"] = ([str(checkpoints)], known[1])
    models.write_checkpoint("tiny_sdxl", checkpoints / CHECKPOINT, vae="both")
    models.write_float8(checkpoints / CHECKPOINT, checkpoints / FLOAT8)
    models.write_lora("tiny_sdxl", folder / "models" / "loras" / LORA)
    return folder


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of the servers and of other processes: the home that this process's engines have, too."""
    return {"ONEGRAPH_HOME": str(tmp_path_factory.mktemp("home")), "ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS": "1"}


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def engine(environment: dict[str, str]) -> Iterator[Any]:
    """A registry as a new process would have it: nothing loaded, the store as earlier tests left it."""
    from onegraph.host import status
    from onegraph.runtime.registry import using

    with using(_engine(environment)) as fresh:
        status.last_runs.clear()
        yield fresh


def _engine(environment: dict[str, str]) -> Any:
    """Tiny models gain little: whether a graph is fast enough is tested in tests/integration."""
    from onegraph.graph_cache.store import Store
    from onegraph.runtime.policy import ANY_SPEED
    from onegraph.runtime.registry import Registry

    return Registry(Store(Path(environment["ONEGRAPH_HOME"])), policy=ANY_SPEED)


@pytest.fixture(scope="session")
def unet_graph(base: Path, environment: dict[str, str]) -> Callable[[torch.dtype], None]:
    """Call it to have the UNet's any-size graph of a dtype in the store: one compile, at the first call."""
    from onegraph.runtime.registry import using

    @functools.cache
    def compile_once(dtype: torch.dtype) -> None:
        with using(_engine(environment)) as engine:
            host.sample(compiled(load(base, dtype)), steps=1, height=256, width=256)
            assert engine is not None
            counters = engine.counters
            assert (counters.compiles, counters.compiled_calls, counters.eager_calls) == (1, 1, 0), node_text()

    return compile_once


@pytest.fixture(scope="session")
def vae_graphs(base: Path, environment: dict[str, str]) -> None:
    """The VAE's two any-size graphs are in the store: one compile each."""
    from onegraph.runtime.registry import using

    with using(_engine(environment)) as engine, torch.inference_mode():
        vae = compiled_vae(host.load_vae(base / "models/checkpoints" / CHECKPOINT))
        vae.decode(torch.zeros(1, 4, 32, 32))
        vae.encode(torch.zeros(1, 256, 256, 3))
        counters = engine.counters
        assert (counters.compiles, counters.compiled_calls, counters.eager_calls) == (2, 2, 0), counters


def load(base: Path, dtype: torch.dtype = torch.float16) -> Any:
    return host.load(base / "models/checkpoints" / CHECKPOINT, dtype=dtype)


def compiled(model: Any, **options: Any) -> Any:
    """The model as the node hands it on."""
    from onegraph.host.families import unet as hook

    return hook.compile_model(model, hook.Options(**options), NODE)[0]


def compiled_vae(vae: Any) -> Any:
    """The VAE as the node hands it on."""
    from onegraph.host import vae_hook as hook

    return hook.compile_vae(vae, hook.Options(parts="both", dynamic_resolution="any size"), NODE)[0]


def node_text() -> str:
    """Return the text of the node after the last run."""
    from onegraph.host import status

    return status.last_runs[NODE].text()
