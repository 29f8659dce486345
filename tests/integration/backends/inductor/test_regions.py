"""A graph of regions, compiled by two processes and used like any other."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
import torch
from support.models import toy

from onegraph.backends.inductor import PLAN_FILE, InductorBackend, settings
from onegraph.backends.inductor.toolchain import Toolchain
from onegraph.backends.worker_pool import WorkerPool
from onegraph.common.refused import Refused
from onegraph.compiler import export
from onegraph.compiler.process import worker
from onegraph.compiler.process.job import ClientModule, Job, write_job
from onegraph.compiler.process.progress import Progress
from onegraph.graph_cache.entry import constants_of
from onegraph.graph_cache.manifest import CONSTANTS_FILE
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

SOURCE = ModelSource(None, "0123456789ab")


def deep(seed: int = 0) -> toy.Deep:
    return toy.Deep(seed, length=130, wide=6, narrow=0)


def is_worker(process: psutil.Process) -> bool:
    try:
        return any(word.endswith("worker.py") for word in process.cmdline())
    except psutil.Error:
        return False


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled by two processes, the second one a copy of the first."""
    home, seen = tmp_path_factory.mktemp("parts"), Counter[int]()
    ready = Toolchain.of_user().prepare(settings.options(toy.CPU), toy.CPU)
    if ready:  # else a copy of the compiling process would do that first
        os.waitpid(ready, 0)

    def watch(progress: Progress) -> None:
        seen.update(child.pid for child in psutil.Process().children(recursive=True) if is_worker(child))

    temporary = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(tempfile, "tempdir", str(temporary))
        patch.setattr(InductorBackend, "workers", lambda self, weights, device: 1)
        engine = Registry(Store(home), policy=ANY_SPEED)
        graph = engine.obtain(toy.request(deep(), SOURCE), "wait", watch)
    assert isinstance(graph, LoadedGraph), graph
    lasting = [process for process, times in seen.items() if times >= 5]  # no C++ compiler that is about to be one
    assert (len(lasting), engine.counters.compiles) == (2, 1)
    assert not list(temporary.glob("onegraph-*"))
    return home


def served(engine: Registry, graph: LoadedGraph, module: toy.Deep, *shape: int) -> torch.Tensor:
    inputs = toy.inputs(*shape)
    result = graph.call(module, inputs, toy.sizes(*inputs), module, engine.counters)
    assert not isinstance(result, Refused), result
    assert result.refusal is None
    torch.testing.assert_close(result.output, module(*inputs))
    return result.output


@pytest.mark.full
def test_regions_that_repeat_are_there_once(store: Path) -> None:
    (entry,) = Store(store).entries()
    files = {path.name for path in entry.folder.iterdir()}
    parts = {name for name in files if name.endswith(".aoti")}
    assert PLAN_FILE in files
    assert set(entry.manifest.files) == {PLAN_FILE, CONSTANTS_FILE, *parts}
    assert len(parts) == 3  # of eight: six blocks, what is before them and what is after
    assert {c.name for c in constants_of(entry)} == {toy.PREFIX + n for n, _ in deep().named_parameters()}


@pytest.mark.full
def test_regions_serve_other_weights_and_sizes(store: Path) -> None:
    engine, a, b = Registry(Store(store), policy=ANY_SPEED), deep(1), deep(2)
    graph = engine.obtain(toy.request(a, SOURCE), "eager", lambda _: None)
    assert isinstance(graph, LoadedGraph)
    for module, shape in ((a, (2, 8, 8, 5)), (b, (1, 4, 32, 64)), (a, (4, 17, 9, 1))):
        served(engine, graph, module, *shape)
    a.wide[2].mix.weight = torch.nn.Parameter(2 * a.wide[2].mix.weight, requires_grad=False)
    served(engine, graph, a, 2, 8, 8, 5)
    a.wide[5].context.bias.add_(1)
    served(engine, graph, a, 2, 8, 8, 5)
    assert (engine.counters.compiles, engine.counters.restores) == (0, 1)


@pytest.mark.full
def test_a_damaged_region_is_noticed(store: Path, tmp_path: Path) -> None:
    import shutil

    home = Path(shutil.copytree(store, tmp_path / "home"))
    (entry,) = Store(home).entries()
    part = entry.folder / "part0.aoti"
    part.write_bytes(part.read_bytes()[:-7])
    refused = Registry(Store(home), policy=ANY_SPEED).obtain(toy.request(deep(), SOURCE), "eager", lambda _: None)
    assert isinstance(refused, Refused)


class Watching(WorkerPool):
    """The main worker, which leaves all the work to others."""

    def _take_all(self, jobs: Mapping[str, Callable[[], None]]) -> None:
        pass


@pytest.mark.full
def test_another_process_compiles_what_it_is_handed(tmp_path: Path) -> None:
    """As on a GPU, which copies of a process cannot use, and on systems without such copies."""
    write_job(Job("deep", "inductor", "cpu", toy.shapes(), toy.shapes(), {}, b"", ClientModule("", {})), tmp_path)
    module, backend = deep(), InductorBackend()
    inputs = toy.inputs(4, 17, 9, 1)
    (other,) = others = worker.start_workers(tmp_path, 1)
    try:
        with backend.capture_settings(), torch.no_grad():
            exported = export.capture(toy.Call(module), toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)
            files = backend.compile(exported, inputs, tmp_path, Watching(tmp_path, others))
        assert other.wait(60) == 0, (tmp_path / worker.log_file(1)).read_text()
    finally:
        other.kill()
    assert len(files) >= 3
    runner = backend.load(tmp_path, toy.CPU)
    runner.bind({toy.PREFIX + name: weight.detach() for name, weight in module.named_parameters()})
    with torch.no_grad():
        torch.testing.assert_close(runner(*inputs), module(*inputs))
