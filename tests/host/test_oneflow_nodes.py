"""OneFlow behind the nodes: what is special to exact sizes and to a backend that holds memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from headless import host

from onegraph.backends.oneflow import counters as oneflow
from onegraph.host.calls.vae import hook as vae_hook
from onegraph.host.jobs import bench
from onegraph.runtime.calls.dispatch import MOST_EXACT
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.obtain.registry import Registry

from .conftest import compiled, needs_oneflow, node_text

pytestmark = needs_oneflow
SAME = 1e-4


@pytest.mark.usefixtures("compiled_once_by_oneflow")
def test_a_restore_neither_captures_nor_lowers(model: Any, counters: Counters) -> None:
    before = oneflow.traces
    assert relative_l2(host.sample(compiled(model, backend="oneflow")), host.sample(model)) < SAME
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0)
    assert oneflow.traces == before
    assert node_text().startswith("restored in ")
    assert node_text().endswith("(oneflow has no graphs for any size, so each size has its own)")


@pytest.mark.usefixtures("compiled_once_by_oneflow")
def test_a_deleted_model_is_let_go(checkpoint: Callable[..., Path], fresh_process: Registry) -> None:
    model = host.load(checkpoint())
    host.sample(compiled(model, backend="oneflow"))
    (graph,) = fresh_process.graphs()
    assert graph.held_bytes > 0
    del model
    host.sample(host.load(checkpoint(seed=2)))
    import gc

    gc.collect()
    host.sample(compiled(host.load(checkpoint(seed=2)), when_missing="eager", backend="inductor"))
    assert graph.held_bytes == 0
    assert graph.retired is None  # it can be bound to another model


@pytest.mark.full
@pytest.mark.usefixtures("compiled_once_by_oneflow")
def test_twenty_sizes_stay_within_the_memory_there_is(model: Any, counters: Counters, fresh_process: Registry) -> None:
    fast = compiled(model, backend="oneflow")
    host.sample(model)
    resident = psutil.Process().memory_info().rss
    for step in range(20):
        size = {"height": 64 + 8 * (step % 5), "width": 64 + 8 * (step // 5)}
        assert relative_l2(host.sample(fast, **size), host.sample(model, **size)) < SAME
    assert counters.compiles == MOST_EXACT
    assert counters.reasons.total() == counters.eager_calls == 2 * (20 - MOST_EXACT)
    assert node_text().startswith(f"uncompiled: {MOST_EXACT} exact sizes were compiled already")
    held = fresh_process.eviction.held_bytes()
    assert 0 < held < fresh_process.eviction.share * psutil.virtual_memory().total
    assert psutil.Process().memory_info().rss - resident < 1.25 * held + 200e6


@pytest.mark.full
def test_encoder_and_decoder_together(checkpoint: Callable[..., Path], counters: Counters) -> None:
    plain = host.load_vae(checkpoint(vae="both"))
    options = vae_hook.VaeNodeOptions(backend="oneflow", parts="both", dynamic_resolution="each size")
    fast = vae_hook.compile_vae(plain, options, "9")[0]
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for _ in range(3):
            z, pixels = torch.randn(1, 4, 8, 8, generator=generator), torch.rand(1, 64, 64, 3, generator=generator)
            assert relative_l2(fast.decode(z), plain.decode(z)) < SAME
            torch.manual_seed(0)
            reference = plain.encode(pixels)
            torch.manual_seed(0)
            assert relative_l2(fast.encode(pixels), reference) < SAME
    assert (counters.compiles, counters.eager_calls, counters.compiled_calls) == (2, 0, 6)


def test_a_graph_too_large_is_refused_with_the_figure(checkpoint: Callable[..., Path], counters: Counters) -> None:
    """A full-size encoder at 2048 pixels would hold hundreds of GiB; the refusal comes before anything is allocated."""
    plain = host.load_vae(checkpoint(vae="both"))
    options = vae_hook.VaeNodeOptions(backend="oneflow", parts="encoder", dynamic_resolution="each size")
    fast = vae_hook.compile_vae(plain, options, "9")[0]
    hook, module = fast.onegraph, plain.first_stage_model
    x = torch.zeros(1, 3, 2048, 2048)
    with torch.inference_mode(), hook.call("encoder", fast, "whole"):
        result = hook.serve("encoder", module, x, lambda given: torch.zeros(1))
    assert result.whole and result.tensor.shape == (1,)  # eager's answer
    (reason,) = counters.reasons
    assert reason.text.startswith("OneFlow would hold ") and "GiB for this graph" in reason.text


@pytest.mark.usefixtures("compiled_once_by_oneflow")
def test_bench_measures_one_backend_in_one_process(
    checkpoint: Callable[..., Path], graphs_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEGRAPH_HOME", str(graphs_home))  # whose key signed the graph
    job = bench.BenchTask(str(host.comfyui_path()), str(checkpoint()), "oneflow", 128, 128, True)
    figures = bench.measure(job)
    assert figures.said.startswith("restored in ") and figures.restore_s is not None and figures.compile_s is None
    assert figures.first_s > 0 and figures.step_ms > 0
    eager = bench.measure(bench.BenchTask(str(host.comfyui_path()), str(checkpoint()), "eager", 128, 128, True))
    assert eager.said == "uncompiled: nothing compiled"  # also where a graph is in the store


@pytest.mark.full
def test_the_bench_command(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from onegraph.cli.app import app

    pack = Path(__file__).parents[1] / "nodes" / "onegraph_testing"
    result = CliRunner().invoke(
        app,
        ["bench", str(checkpoint()), "--comfyui", str(host.comfyui_path()), "--backends", "oneflow", "--cpu",
         "--size", "64x64", "--custom-node", str(pack), "--out", str(tmp_path / "bench.json"),
         "--html", str(tmp_path / "bench.html")],
        env={"COLUMNS": "160"},
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "bench.json").read_text())["backends"]
    assert list(report) == ["oneflow"]
    assert report["oneflow"]["first"]["compile_s"] > 0 and report["oneflow"]["first"]["restore_s"] is None
    assert report["oneflow"]["again"]["restore_s"] > 0 and report["oneflow"]["again"]["compile_s"] is None
    assert "restored in" in result.output
    page = (tmp_path / "bench.html").read_text()
    assert f">{report['oneflow']['again']['first_s']:.2f}</td>" in page and "restored in" in page
    assert str(tmp_path) not in page and str(checkpoint().parent) not in page
