"""`onegraph bench` on a diffusion transformer, and the file that it writes to be sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headless import host
from support.models import dit_files

from onegraph.cli import bench as command
from onegraph.host.jobs import bench


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of checkpoints are as before afterwards: measuring takes a process of its own."""
    import folder_paths

    named = folder_paths.folder_names_and_paths
    monkeypatch.setitem(named, "checkpoints", named["checkpoints"])


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    dit_files.write("flux", folder / "secret.safetensors", folder / "lora.safetensors")
    return folder / "secret.safetensors"


def test_a_diffusion_model_alone_is_measured(flux: Path) -> None:
    figures = bench.measure(bench.BenchTask(str(host.comfyui_path()), str(flux), "eager", 128, 128, True))
    assert (figures.model, figures.dtype, figures.said) == ("Flux", "float32", "uncompiled: nothing compiled")
    assert figures.first_s > 0 and figures.step_ms > 0


def test_what_is_shared_names_no_file(flux: Path) -> None:
    figures = {"said": f"uncompiled: {flux} and secret.graphs", "step_ms": 3.0}
    failed = {"failed": f"FileNotFoundError: '{flux}'"}
    machine = {"device": "CPU", "torch": "2.14.1", "size": "128x128"}
    results = {"eager": {"first": figures, "again": figures}, "oneflow": {"first": failed, "again": failed}}
    shared = command._shared(machine, results, flux.stem)
    assert shared["backends"]["eager"]["again"] == {
        "said": "uncompiled: model.safetensors and model.graphs",
        "step_ms": 3.0,
    }
    text = json.dumps(shared)
    assert "secret" not in text and str(flux.parent) not in text and str(Path.home()) not in text
    assert {"device", "memory_mib", "os", "python", "torch", "onegraph", "size"} <= shared.keys()


@pytest.mark.full
def test_the_command_compiles_a_diffusion_model_by_blocks(
    flux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from onegraph.cli.app import app

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        app,
        ["bench", str(flux), "--comfyui", str(host.comfyui_path()), "--backends", "eager,inductor", "--cpu",
         "--size", "128x128", "--share"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    both = json.loads((tmp_path / command.SHARED).read_text())["backends"]["inductor"]
    assert "blocks compiled" in both["again"]["said"] and both["first"]["compile_s"] > 0
    assert both["again"]["restore_s"] > 0 and both["again"]["compile_s"] is None
