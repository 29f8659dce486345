"""The real ComfyUI on a GPU, in this process and as a server. All tests share one base directory and its graphs.

Without a GPU every test is skipped, visibly; nothing here imports ComfyUI before a test runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host, models, server

CHECKPOINT, FLOAT8, LORA = "tiny_sdxl.safetensors", "tiny_sdxl_fp8.safetensors", "tiny_lora.safetensors"
DEEP, REFINER = "deep_sdxl.safetensors", "tiny_refiner.safetensors"
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
    from onegraph.host.show import status
    from onegraph.runtime.obtain.registry import using

    with using(another_engine(environment)) as fresh:
        status.last_runs.clear()
        yield fresh


def another_engine(environment: dict[str, str]) -> Any:
    """A registry as a new process has it. Tiny models gain little: speed is judged in tests/integration."""
    from onegraph.graph_cache.store import Store
    from onegraph.runtime.obtain.registry import Registry
    from onegraph.runtime.policy import ANY_SPEED

    return Registry(Store(Path(environment["ONEGRAPH_HOME"])), policy=ANY_SPEED)


class Compiles:
    """The compiles that several tests share, side by side: each in a process of its own, all into one store.

    One after the other they took longer than all tests together. They start when the first of them is waited for.
    """

    def __init__(self, jobs: dict[str, list[str]], environment: dict[str, str], logs: Path) -> None:
        self._jobs, self._environment, self._logs = jobs, environment, logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._done: set[str] = set()

    def wait(self, *names: str) -> None:
        """Wait for the graphs of these names, or for all, and see that each was compiled and ran."""
        if not self._running:
            self._start()
        for name in names or self._jobs:
            if name in self._done:
                continue
            code = self._running[name].wait(timeout=400)
            log = self._log(name).read_text(errors="replace")
            assert code == 0, log[-4000:]
            found = json.loads(log.splitlines()[-1])
            graphs = 2 if name == "vae" else 1
            counted = [found[key] for key in ("compiles", "compiled_calls", "eager_calls")]
            assert counted == [graphs, graphs, 0], found
            self._done.add(name)

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def _start(self) -> None:
        script = Path(__file__).parents[1] / "support" / "processes" / "compile_process.py"
        for name, arguments in self._jobs.items():
            with self._log(name).open("wb") as out:
                self._running[name] = subprocess.Popen(
                    [sys.executable, str(script), *arguments],
                    env={**os.environ, **self._environment},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


@pytest.fixture(scope="session")
def compiles(base: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiles]:
    """What is compiled once for all tests."""
    checkpoint = str(base / "models/checkpoints" / CHECKPOINT)
    deep = str(models.write_checkpoint("deep_sdxl", base / "models/checkpoints" / DEEP))
    refiner = str(models.write_checkpoint("tiny_refiner", base / "models/checkpoints" / REFINER))
    jobs = {str(dtype): ["unet", checkpoint, str(dtype).removeprefix("torch.")] for dtype in DTYPES}
    jobs |= {"every size": ["unet", checkpoint, "float16", "200"]}
    jobs |= {"vae": ["vae", checkpoint], "deep": ["unet", deep], "refiner": ["unet", refiner, "float16"]}
    shared = Compiles(jobs, environment, tmp_path_factory.mktemp("compiles"))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def unet_graph(compiles: Compiles) -> Callable[[torch.dtype], None]:
    """Call it to have the UNet's any-size graph of a dtype in the store."""
    return lambda dtype: compiles.wait(str(dtype))


@pytest.fixture(scope="session")
def vae_graphs(compiles: Compiles) -> None:
    """The VAE's two any-size graphs are in the store."""
    compiles.wait("vae")


def load(base: Path, dtype: torch.dtype = torch.float16) -> Any:
    return host.load(base / "models/checkpoints" / CHECKPOINT, dtype=dtype)


def compiled(model: Any, **options: Any) -> Any:
    """The model as the node hands it on."""
    from onegraph.host.calls import model_hook as hook

    return hook.compile_model(model, hook.ModelNodeOptions(**options), NODE)[0]


def compiled_vae(vae: Any) -> Any:
    """The VAE as the node hands it on."""
    from onegraph.host.calls.vae import hook

    return hook.compile_vae(vae, hook.VaeNodeOptions(parts="both", dynamic_resolution="any size"), NODE)[0]


def node_text() -> str:
    """Return the text of the node after the last run."""
    from onegraph.host.show import status

    return status.last_runs[NODE].text()
