"""The examples run as they stand, with a small model on the disk; what OneDiff's names stand for."""

from __future__ import annotations

import copy
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import warm
from support.models import pipes

from onegraph.pipelines import PipelineError, compile_pipe, onediff, saving
from onegraph.runtime.obtain.registry import Registry

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(script: str | Path, *arguments: str, home: Path, cwd: Path) -> str:
    environ = {**os.environ, "ONEGRAPH_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    with (cwd / "printed.txt").open("w+b") as printed:
        started = warm.start(
            [sys.executable, str(EXAMPLES / script), *arguments], environ=environ, cwd=cwd, out=printed.fileno()
        )
        code = started.wait(600)
        printed.seek(0)
        told = printed.read().decode()
    assert code == 0, told[-2000:]
    return told


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


def test_the_pages_code_blocks(home: Path, model: Path, tmp_path: Path) -> None:
    """As they stand, one after the other, with a small model in the folder that they name."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "diffusers.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 3
    (tmp_path / "page.py").write_text("\n".join(blocks))
    (tmp_path / "my-model").symlink_to(model)
    told = run(tmp_path / "page.py", home=home, cwd=tmp_path)
    assert "unet: " in told and "compiled in" not in told and "no graph" not in told.partition("vae.encoder")[0]
    assert {"lighthouse.png", "my-graphs", "unet_compiled"} <= {path.name for path in tmp_path.iterdir()}


def test_the_extra_brings_what_the_page_imports() -> None:
    """Besides what every installation has; transformers is imported by diffusers for any model with a text encoder."""
    text = (ROOT / "pyproject.toml").read_text()
    extra = re.search(r"^diffusers = \[(.*)\]$", text, re.MULTILINE)
    assert extra is not None and re.findall(r'"([a-z]+)', extra[1]) == ["diffusers", "torch", "transformers"]
    assert '"./ComfyUI-OneGraph[diffusers]"' in (ROOT / "docs" / "diffusers.md").read_text()


def test_onediffs_names(registry: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    onediff._warn.cache_clear()
    with caplog.at_level(logging.WARNING, "onegraph.pipelines"):
        pipe = onediff.compile_pipe(pipes.sd(), ignores=["text_encoder", "vae.encoder"], fuse_qkv_projections=False)
        onediff.compile_pipe(pipe, ignores=("vae.encoder"))
    assert [record.getMessage() for record in caplog.records] == [
        "OneGraph: onediffx.compile_pipe is onediff's name; use compile_pipe of onegraph.pipelines."
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


CALL = torch.ones(1, 4, 8, 8), 5, torch.ones(1, 7, 32)


def called(unet: Any) -> Any:
    with torch.no_grad():
        return unet(*CALL).sample


def test_oneflow_compile_of_a_module(registry: Registry, tmp_path: Path) -> None:
    """As OneDiffX's sdxl_save_load and sdxl_mp_load do, each step twice."""
    options = onediff.OneflowCompileOptions(max_cached_graph_size=0)
    options.dynamic = False
    unet: Any = onediff.oneflow_compile(pipes.unet(), options=options)
    called(unet)
    assert unet.onegraph.report()["unet"].codes == {"too_many_exact_sizes": 1}
    unet = onediff.oneflow_compile(
        pipes.unet(), options=onediff.OneflowCompileOptions(dynamic=True, run_graph_by_vm=True)
    )
    right = called(unet)
    for _ in range(2):
        unet.save_graph(str(tmp_path / "unet"))
    assert unet.onegraph.report()["unet"].compiled_calls == 1
    for arguments in ((), (torch.device("cpu"),), ("cpu", True)):
        other: Any = onediff.oneflow_compile(pipes.unet(3))
        other.load_graph(str(tmp_path / "unet"), *arguments, state_dict=unet.state_dict())
        assert torch.allclose(called(other), right, atol=1e-4)
        assert other.onegraph.report()["unet"].compiled_calls == 1
    (tmp_path / "file").write_text("OneDiff's")
    with pytest.raises(PipelineError, match="choose another name"):
        unet.save_graph(tmp_path / "file")
    with pytest.raises(TypeError, match="use_grph"):
        onediff.OneflowCompileOptions(use_grph=False)


def test_weights_through_the_torch_module(registry: Registry) -> None:
    """As OneDiffX's sdxl_reuse_pipe does: the compiled UNet gets another model's weights and goes into its pipeline."""
    base, new, eager = pipes.sd(), pipes.sd(seed=4), pipes.sd(seed=4)
    base.unet = onediff.oneflow_compile(base.unet)
    pipes.image(base)
    compiled = base.unet
    compiled._torch_module.load_state_dict(new.unet.state_dict())
    new.unet = compiled
    assert pipes.distance(pipes.image(new), pipes.image(eager)) <= 2
    assert compiled.onegraph.report()["unet"].compiled_calls == 4
    copied = copy.deepcopy(compiled)
    assert copied._torch_module.conv_in is copied.conv_in


def test_options_without_a_graph(registry: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`use_graph` is off, or the module is one that nobody compiles, as a text encoder."""
    options = onediff.OneflowCompileOptions()
    options.use_graph = False
    unet: Any = onediff.oneflow_compile(pipes.unet(), options=options)
    encoder: Any = onediff.oneflow_compile(pipes.text_encoder(), options=onediff.OneflowCompileOptions())
    called(unet)
    assert unet.onegraph.report()["unet"].codes == {"graphs_off": 0} and registry.counters.restores == 0
    for module in (unet, encoder):
        module.save_graph(tmp_path / "graph")
        module.load_graph(tmp_path / "graph", run_warmup=True)
    assert not (tmp_path / "graph").exists()
    told = [
        record.getMessage().removeprefix("OneGraph: ").partition(":")[0]
        for record in caplog.records
        if " graph" in record.getMessage()
    ]
    assert told == [
        f"{name} {what}"
        for name in ("UNet2DConditionModel", "CLIPTextModel")
        for what in ("has no graph to save", "loads no graph")
    ]
    pipe = onediff.compile_pipe(pipes.sd(), options=options)
    pipes.image(pipe)
    assert pipe.onegraph.report().compiled_calls == 0
    with pytest.raises(PipelineError, match="Leave the call out"):
        onediff.quantize_pipe(pipe, ignores=[], quant_type="fp8")


def test_a_graph_file(registry: Registry, tmp_path: Path) -> None:
    options = onediff.OneflowCompileOptions(graph_file=str(tmp_path / "unet.graph"))
    unet: Any = onediff.oneflow_compile(pipes.unet(), options=options)
    called(unet)
    assert saving.holds_graphs(tmp_path / "unet.graph")
    again: Any = onediff.compile(pipes.unet(), backend="oneflow", options=options)
    assert again.onegraph.components["unet"].options.folders == (tmp_path / "unet.graph",)
    called(again)
    assert again.onegraph.report()["unet"].compiled_calls == 1


def test_onediffs_functions_for_loras(registry: Registry) -> None:
    """Fused LoRAs are in the model's own weights: the plain graph serves, and they come out again."""
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    plain = pipes.image(eager)
    generator = torch.Generator().manual_seed(1)
    weights = {
        f"unet.{name}.lora_{side}.weight": torch.randn(shape, generator=generator) * 0.3
        for name, child in eager.unet.named_modules()
        if name.endswith("to_q")
        for side, shape in (("A", (2, child.in_features)), ("B", (child.out_features, 2)))
    }
    for one in (pipe, eager):
        onediff.load_and_fuse_lora(one, dict(weights), "a", lora_scale=1.0)
    fused = pipes.image(eager)
    assert pipes.distance(pipes.image(pipe), fused) <= 2 and pipes.distance(plain, fused) > 4
    onediff.unfuse_lora(pipe)
    assert pipes.distance(pipes.image(pipe), plain) <= 2
    onediff.set_and_fuse_adapters(pipe, "a", [1.0])
    assert pipes.distance(pipes.image(pipe), fused) <= 2 and onediff.get_active_adapters(pipe) == ["a"]
    onediff.delete_adapters(pipe)
    assert pipes.distance(pipes.image(pipe), plain) <= 2
    report = pipe.onegraph.report()["unet"]
    assert report.compiled_calls == 8 and not report.eager, report.text
