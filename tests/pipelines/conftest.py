"""Graphs of the small pipelines, compiled once in a run of the tests into one store that all of them read.

`pipes.sd` and `pipes.sdxl` have the same VAE, so its halves are compiled once. A test that wants an empty store or
another user's makes its own, see `fresh`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.models import pipes
from support.models.block_pipes import add_lora, latents, qwen
from support.processes import warm_compiles
from support.scenes.process import new_process

from onegraph.pipelines import compile_pipe
from onegraph.runtime.obtain.registry import Registry


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pipelines-home", type=Path, help="folder that keeps the graphs for the next run")


@pytest.fixture(scope="session", autouse=True)
def compiling_processes() -> Iterator[None]:
    """Compiles start faster in `make test`; those of other layers start as a user's do."""
    with pytest.MonkeyPatch.context() as patch:
        warm_compiles.copies(patch)
        yield


@pytest.fixture(scope="session")
def home(compiling_processes: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A user's graph folder with the graphs of `pipes.sd`; never to be changed but by compiling more."""
    kept: Path | None = request.config.getoption("--pipelines-home")
    home = kept or tmp_path_factory.mktemp("home")
    with new_process(home) as registry:
        pipe = compile_pipe(pipes.sd())
        pipes.image(pipe)
        with torch.no_grad():
            pipe.vae.encode(torch.rand(1, 3, pipes.SIDE, pipes.SIDE))
        assert registry is not None
        assert registry.counters.compiles + registry.counters.restores == 3, str(pipe.onegraph.report())
    return home


@pytest.fixture(scope="session")
def blocks_home(
    compiling_processes: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """A user's folder with the graph of the pipeline's blocks, and with that of blocks with a LoRA."""
    kept: Path | None = request.config.getoption("--pipelines-home")
    home = kept or tmp_path_factory.mktemp("blocks")
    with new_process(home) as registry:
        pipe = compile_pipe(qwen())
        latents(pipe)
        add_lora(pipe)
        latents(pipe)
        assert registry.counters.compiles + registry.counters.restores == 2, str(pipe.onegraph.report())
    return home


@pytest.fixture
def registry(home: Path) -> Iterator[Registry]:
    """A registry as in a fresh process, over the shared store."""
    with new_process(home) as registry:
        yield registry


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Registry]:
    """A registry over an empty store of the test's own."""
    with new_process(tmp_path / "home") as registry:
        yield registry
