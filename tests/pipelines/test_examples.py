"""The examples run as they stand, with a small model on the disk; what OneDiff's names stand for."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import pipes

from onegraph.pipelines import onediff
from onegraph.runtime.registry import Registry

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str, *arguments: str, home: Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(EXAMPLES / script), *arguments],
        env={**os.environ, "ONEGRAPH_HOME": str(home), "HF_HUB_OFFLINE": "1"},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipes.model_folder(tmp_path_factory.mktemp("model"))


def test_the_quick_start(home: Path, model: Path, tmp_path: Path) -> None:
    """Small graphs may be slower than eager, which is a reason; but none is missing, and none is compiled."""
    graphs = tmp_path / "graphs"
    for _ in range(2):
        told = run("diffusers_quickstart.py", str(model), str(graphs), "a b c", home=home, cwd=tmp_path)
        assert "first image after" in told and "unet: " in told
        assert "compiled in" not in told and "no graph" not in told.partition("vae.encoder")[0]
    assert (graphs / "image.png").is_file() and (graphs / "unet.graphs").is_dir()


@pytest.mark.full
def test_a_script_for_onediffx(home: Path, model: Path, tmp_path: Path) -> None:
    run("from_onediffx.py", str(model), home=home, cwd=tmp_path)
    run("from_onediffx.py", str(model), home=home, cwd=tmp_path)
    assert (tmp_path / "image.png").is_file() and (tmp_path / "cached_pipe" / "unet.graphs").is_dir()


def test_onediffs_names(registry: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    onediff._warn.cache_clear()
    with caplog.at_level(logging.WARNING, "onegraph.pipelines"):
        pipe = onediff.compile_pipe(pipes.sd(), ignores=["text_encoder", "vae.encoder"], fuse_qkv_projections=False)
        onediff.compile_pipe(pipe, ignores=("vae.encoder"))
    assert [record.getMessage() for record in caplog.records] == [
        "onediffx.compile_pipe is onediff's name; use compile_pipe of onegraph.pipelines."
    ]
    image = pipes.image(pipe)
    onediff.save_pipe(pipe, dir=tmp_path / "cached_pipe", ignores=["unet"])
    assert [path.name for path in (tmp_path / "cached_pipe").iterdir()] == ["vae.decoder.graphs"]
    onediff.save_pipe(pipe, dir=tmp_path / "cached_pipe", overwrite=False)
    assert [path.name for path in (tmp_path / "cached_pipe").iterdir()] == ["vae.decoder.graphs"]
    onediff.save_pipe(pipe, dir=tmp_path / "cached_pipe")
    loaded = pipes.sd()
    onediff.load_pipe(loaded, dir=tmp_path / "nowhere")
    onediff.load_pipe(loaded, dir=tmp_path / "cached_pipe")
    assert pipes.distance(pipes.image(loaded), image) <= 2
    assert loaded.onegraph.report()["unet"].compiled_calls == 2 and registry.counters.compiles == 0


def test_oneflow_compile_of_a_module(registry: Registry, tmp_path: Path) -> None:
    options = onediff.OneflowCompileOptions(max_cached_graph_size=0)
    unet = onediff.oneflow_compile(pipes.unet(), dynamic=False, options=options)
    with torch.no_grad():
        unet(torch.zeros(1, 4, 8, 8), 5, torch.zeros(1, 7, 32))
        assert unet.onegraph.report()["unet"].codes == {"too_many_exact_sizes": 1}  # type: ignore[union-attr, operator]
        unet = onediff.oneflow_compile(pipes.unet())
        unet(torch.zeros(1, 4, 8, 8), 5, torch.zeros(1, 7, 32))
    unet.save_graph(tmp_path / "unet")  # type: ignore[operator]
    assert unet.onegraph.report()["unet"].compiled_calls == 1  # type: ignore[union-attr, operator]
