"""Modules that return several tensors: compiled whole and in regions, stored, restored, checked, run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy

from onegraph.backends.inductor import PLAN_FILE, InductorBackend, backend
from onegraph.common import reasons
from onegraph.common.errors import CaptureError
from onegraph.common.refused import Refused
from onegraph.compiler import export
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

SOURCE = ModelSource(None, "0123456789ab")


class Reused(toy.Toy):
    """Returns its result twice, an input as it is, and a view of an input."""

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> Any:
        result = super().forward(x, context)
        return result, result, x, x[:, :2]


def captured(module: torch.nn.Module) -> torch.export.ExportedProgram:
    with InductorBackend().capture_settings():
        return export.capture(toy.Call(module), toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)


def compiled(module: torch.nn.Module, folder: Path) -> Any:
    """The runner of a module that this process compiled, bound to its weights."""
    inputs = toy.inputs()
    with InductorBackend().capture_settings():
        InductorBackend().compile(captured(module), inputs, folder)
    runner = InductorBackend().load(folder, toy.CPU)
    runner.bind({toy.PREFIX + name: weight for name, weight in module.named_parameters()})
    return runner


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the graph of `Several`, compiled in a child process."""
    home = tmp_path_factory.mktemp("several")
    with torch.no_grad():
        graph = Registry(Store(home), policy=ANY_SPEED).obtain(
            toy.request(toy.Several(), SOURCE), "wait", lambda _: None
        )
    assert isinstance(graph, LoadedGraph), graph
    assert graph.entry.manifest.outputs == 4
    return home


def restored(home: Path) -> tuple[Registry, LoadedGraph]:
    engine = Registry(Store(home), policy=ANY_SPEED)
    graph = engine.obtain(toy.request(toy.Several(1), SOURCE), "eager", lambda _: None)
    assert isinstance(graph, LoadedGraph), graph
    assert (engine.counters.restores, engine.counters.compiles) == (1, 0)
    return engine, graph


def call(engine: Registry, graph: LoadedGraph, eager: Any = None, *shape: int) -> Any:
    module, inputs = toy.Several(1), toy.inputs(*shape)
    right = lambda *given: toy.several(module, *given)  # noqa: E731
    result = graph.call(module, inputs, toy.sizes(*inputs), eager or right, engine.counters)
    assert not isinstance(result, Refused), result
    return result, right(*inputs)


def test_a_restored_graph_gives_all_outputs(home: Path) -> None:
    engine, graph = restored(home)
    for shape in ((2, 8, 8, 5), (1, 17, 9, 1), (4, 4, 32, 64)):
        result, expected = call(engine, graph, None, *shape)
        assert result.refusal is None
        torch.testing.assert_close(result.output, expected)
    assert graph.first_use.result.checked.keys() == {"n", "batch,context"}


def test_one_wrong_output_is_found_at_first_use(home: Path, tmp_path: Path) -> None:
    import shutil

    engine, graph = restored(Path(shutil.copytree(home, tmp_path / "home")))
    object.__setattr__(graph.first_use, "result", graph.first_use.result.model_copy(update={"checked": {}}))
    module = toy.Several(1)

    def other(*given: torch.Tensor) -> Any:
        out, skip, small, again = toy.several(module, *given)
        return out, skip, 1.1 * small, again

    result, _ = call(engine, graph, other)
    assert isinstance(result.refusal, reasons.FirstUseFailed)
    assert isinstance(result.refusal.because, reasons.TooFarFromEager)
    assert graph.retired == result.refusal


def test_a_graph_with_other_outputs_than_stated(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    engine, graph = restored(Path(shutil.copytree(home, tmp_path / "home")))
    call(engine, graph)
    graph.fresh = True
    monkeypatch.setattr(graph, "_run", lambda runner, inputs: toy.several(toy.Several(1), *inputs)[:2])
    result, expected = call(engine, graph)
    assert result.refusal == reasons.FirstUseFailed(reasons.OtherResult("2 tensors", "4 tensors"))
    torch.testing.assert_close(result.output, expected)


@pytest.mark.full
def test_regions_give_several_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_REGION_COSTS", {"cpu": 4})
    module, inputs = toy.Several(2, wide=3, narrow=0), toy.inputs(3, 9, 5, 2)
    runner = compiled(module, tmp_path)
    assert (tmp_path / PLAN_FILE).exists()
    torch.testing.assert_close(runner(*inputs), toy.several(module, *inputs))


def test_a_result_may_be_written_to(tmp_path: Path) -> None:
    """ComfyUI scales a ControlNet's residuals in place."""
    module, inputs = Reused(), toy.inputs()
    before = [tensor.clone() for tensor in inputs]
    runner = compiled(module, tmp_path)
    for _ in range(2):
        results, expected = runner(*inputs), module(*inputs)
        torch.testing.assert_close(results, expected)
        results[0].mul_(2)
        results[2].mul_(2)
        torch.testing.assert_close(results[1], expected[1])
        torch.testing.assert_close(results[3], expected[3])
    torch.testing.assert_close(inputs, tuple(before))


@pytest.mark.parametrize("more", [3, None, ()])
def test_what_is_no_tensor_is_refused(more: Any) -> None:
    class Odd(toy.Toy):
        def forward(self, x: torch.Tensor, context: torch.Tensor) -> Any:
            return more if more == () else (super().forward(x, context), more)

    with pytest.raises(CaptureError, match="something else than tensors"):
        captured(Odd())
