"""The traps of AOTInductor, each as a test on a really compiled graph."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy

from onegraph.backends.inductor import InductorBackend, InductorRunner, container, packages
from onegraph.backends.inductor import runner as runner_module
from onegraph.backends.inductor import settings as backend_settings
from onegraph.common.refused import Refused
from onegraph.compiler import export
from onegraph.graph_cache.entry import Entry, constants_of
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs import binding
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain.registry import Registry


@pytest.fixture
def entry(compiled_store: Path) -> Entry:
    return next(Store(compiled_store).entries())


@pytest.fixture
def runner(entry: Entry) -> InductorRunner:
    return InductorBackend().load(entry.folder, toy.CPU)


def run(runner: InductorRunner, entry: Entry, module: toy.Toy, *inputs: torch.Tensor) -> torch.Tensor:
    bound = binding.bind(runner, module, constants_of(entry), toy.CPU, toy.PREFIX)
    assert not isinstance(bound, Refused)
    return runner(*inputs)


LOAD = """
import os, sys
from pathlib import Path
from support.models import toy
from onegraph.backends.inductor import InductorBackend
runner = InductorBackend().load(Path(sys.argv[1]), toy.CPU)
print("loaded", flush=True)
sys.stdin.read()
"""


# What loads a library: its own C interface, or torch's loader -------------------------------------------------------


def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container.Library, "of", lambda unpacked: None)


def loaded_by(runner: InductorRunner) -> set[type]:
    return {type(region.loaded) for region in runner._regions}


def test_both_ways_of_loading_give_the_same(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    module, inputs = toy.Toy(1), toy.inputs()
    own = InductorBackend().load(entry.folder, toy.CPU)
    by_torch(monkeypatch)
    torchs = InductorBackend().load(entry.folder, toy.CPU)
    assert (loaded_by(own), loaded_by(torchs)) == ({container.Container}, {container.Packaged})
    assert sorted(own.constant_names()) == sorted(torchs.constant_names())
    result = run(own, entry, module, *inputs)
    assert torch.equal(result, run(torchs, entry, module, *inputs))
    torch.testing.assert_close(result, module(*inputs))


@pytest.mark.parametrize("lacking", ["library", "torch"])
def test_where_something_is_missing_torchs_loader_takes_over(
    lacking: str, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking == "library":
        monkeypatch.setattr(container, "_NEEDED", (*container._NEEDED, "OfAnotherTorch"))
    else:
        found = container.require

        def require(what: str) -> Any:
            return found(f"{what}_of_another_torch" if "void_ptrs" in what else what)

        monkeypatch.setattr(container, "require", require)
    runner, module, inputs = InductorBackend().load(entry.folder, toy.CPU), toy.Toy(1), toy.inputs()
    assert loaded_by(runner) == {container.Packaged}
    torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))


def test_two_threads_call_one_library_at_once(entry: Entry) -> None:
    """No lock of Python's keeps them apart: each has weights of its own."""
    load = InductorBackend().loader(entry.folder, toy.CPU)
    modules = [toy.Toy(seed) for seed in (1, 2)]
    inputs = toy.inputs()
    runners = [load() for _ in modules]
    expected = [run(one, entry, module, *inputs) for one, module in zip(runners, modules, strict=True)]
    wrong: list[int] = []

    def call(number: int) -> None:
        wrong.extend(number for _ in range(2000) if not torch.equal(runners[number](*inputs), expected[number]))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and not torch.equal(*expected)


def test_other_threads_go_on_while_a_graph_computes(runner: InductorRunner, entry: Entry) -> None:
    """The server answers. No thread is made to give up Python's lock here, so another one runs only if it is free."""
    module, inputs = toy.Toy(1), toy.inputs()
    run(runner, entry, module, *inputs)
    rounds, done = 0, threading.Event()

    def go_on() -> None:
        nonlocal rounds
        while not done.is_set():
            rounds += 1
            time.sleep(0)  # gives it up

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    other = threading.Thread(target=go_on)
    try:
        other.start()
        seen = rounds
        for _ in range(100_000):  # until the system has let the other one run in one of them
            runner(*inputs)
            if rounds > seen + 1:
                break
        assert rounds > seen + 1
    finally:
        sys.setswitchinterval(before)
        done.set()
        other.join()


def test_what_was_loaded_goes_with_its_runner(entry: Entry) -> None:
    runner, module, inputs = InductorBackend().load(entry.folder, toy.CPU), toy.Toy(1), toy.inputs()
    run(runner, entry, module, *inputs)
    held = [weakref.ref(region.loaded) for region in runner._regions]
    alive = [one() is not None for one in held]
    del runner
    gc.collect()
    assert (alive, [one() is not None for one in held]) == ([True] * len(held), [False] * len(held))


def test_a_library_is_told_what_it_does_not_know(runner: InductorRunner, entry: Entry) -> None:
    module, inputs = toy.Toy(1), toy.inputs()
    expected = run(runner, entry, module, *inputs)
    code = runner._regions[0].loaded
    with pytest.raises(RuntimeError, match="has no weight nonsense"):
        code.bind({"nonsense": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="takes 2 inputs, not 3"):
        code([*inputs, inputs[0]])
    assert torch.equal(runner(*inputs), expected)


def test_calls_keep_no_memory(runner: InductorRunner, entry: Entry) -> None:
    module, inputs = toy.Toy(1), toy.inputs()
    expected = run(runner, entry, module, *inputs)
    given = [tensor.clone() for tensor in inputs]
    found = runner(*given)
    assert torch.equal(found, expected)
    kept = [weakref.ref(tensor) for tensor in (*given, found)]
    del given, found
    assert {one() for one in kept} == {None}


def test_a_killed_process_leaves_no_unpacked_files(entry: Entry, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LOAD, str(entry.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == b"loaded\n"
        process.kill()
    assert [*tmp_path.iterdir()] == []


def test_files_that_a_gpu_reads_later_stay_with_it(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = runner_module._Files(entry.folder, toy.CPU)
    files._read_later = True
    loaded = runner_module._loaded(runner_module._read_plan(entry.folder), files)
    files.keep_for(loaded)
    assert len([*tmp_path.rglob("*.so")]) == 1
    Store(tmp_path / "home").sweep()
    assert len([*tmp_path.rglob("*.so")]) == 1  # its owner lives
    del loaded
    gc.collect()
    assert [*tmp_path.iterdir()] == []


def test_a_torch_that_takes_no_folder_unpacks_itself(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    by_torch(monkeypatch)
    usual = runner_module._Files._packaged
    folders = []

    def older(files: runner_module._Files, path: Path) -> object:
        folders.append(path.is_dir())
        if path.is_dir():
            raise RuntimeError("Failed to initialize zip archive")
        return usual(files, path)

    monkeypatch.setattr(runner_module._Files, "_packaged", older)
    runner, module, inputs = InductorBackend().load(entry.folder, toy.CPU), toy.Toy(1), toy.inputs()
    assert folders and folders == [True, False] * (len(folders) // 2)  # each archive as a folder, then as it is
    torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))


@pytest.mark.parametrize("which", ["kernel", "wrapper"])
def test_metadata_that_torch_copied_while_they_were_written(
    which: str, entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty copy is as good as whole afterwards, also for a torch that takes no folder."""
    folder = tmp_path / "graph"
    shutil.copytree(entry.folder, folder)
    file = folder / "graph.aoti"
    with zipfile.ZipFile(file) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    (lost,) = [name for name in found if name.endswith(f".{which}_metadata.json")]
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in found.items():
            archive.writestr(name, b"" if name == lost else data)
    packages.with_whole_metadata(file)
    with zipfile.ZipFile(file) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == found
    by_torch(monkeypatch)
    usual = runner_module._Files._packaged
    monkeypatch.setattr(runner_module._Files, "_packaged", lambda files, path: usual(files, file))
    module, inputs = toy.Toy(1), toy.inputs()
    runner = InductorBackend().load(folder, toy.CPU)
    torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))


@pytest.mark.parametrize("regions", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_graph_names_no_folder_of_its_machine(regions: bool, entry: Entry, tmp_path: Path) -> None:
    """Graphs are shared. Sources, which get longer with each compile of the same code, are empty."""
    folder = entry.folder
    if regions:
        folder = tmp_path / "graph"
        folder.mkdir()
        backend = InductorBackend()
        with backend.capture_settings(), backend_settings.compile_settings(toy.CPU), torch.no_grad():
            exported = export.capture(toy.Call(toy.Toy()), toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)
            packages.compile_region(exported.module(), backend_settings.options(toy.CPU), folder, 0)
    packed = [path for path in folder.iterdir() if path.suffix == ".aoti"]
    own = [Path(torch.__file__).parents[1], tmp_path.parents[1], Path.home(), os.environ["TORCHINDUCTOR_CACHE_DIR"]]
    assert packed
    for path in packed:
        with zipfile.ZipFile(path) as archive:
            assert not [one.filename for one in archive.infolist() if one.filename.endswith(".cpp") and one.file_size]
            contents = [*archive.namelist(), *(archive.read(name).decode("latin-1") for name in archive.namelist())]
        assert not [(str(name), path) for name in own for text in contents if f"{name}/" in text]


def test_small_constants_are_not_inlined(runner: InductorRunner, entry: Entry) -> None:
    assert set(runner.constant_names()) == {toy.PREFIX + n for n, _ in toy.Toy().named_parameters()}
    for seed in (1, 2):  # two checkpoints that differ in every weight, the 4-element output bias included
        module, inputs = toy.Toy(seed), toy.inputs()
        torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))
    only_bias = toy.Toy(1)
    only_bias.out.bias.add_(torch.tensor([1.0, -2.0, 3.0, -4.0]))
    torch.testing.assert_close(run(runner, entry, only_bias, *inputs), only_bias(*inputs))


@pytest.mark.full
def test_a_weight_of_one_element_is_no_constant(tmp_path: Path) -> None:
    """The compiler sees zeros for weights, and must not compute with them."""

    class Blend(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor([factor]), requires_grad=False)

        def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
            share = torch.sigmoid(self.factor)[..., None]
            return share * x + (1 - share) * context.mean()

    backend = InductorBackend()
    with backend.capture_settings():
        exported = export.capture(Blend(0.0), toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)
        backend.compile(exported, toy.inputs(), tmp_path)
    runner, inputs = backend.load(tmp_path, toy.CPU), toy.inputs(3, 12, 8, 7)
    for module in (Blend(0.0), Blend(2.5)):
        runner.bind({"factor": module.factor.detach()})
        torch.testing.assert_close(runner(*inputs), module(*inputs))


@pytest.mark.parametrize("call", [(1, 4, 4, 1), (1, 32, 32, 64), (4, 5, 31, 3), (2, 17, 9, 1)])
def test_one_graph_serves_the_whole_range(call: tuple[int, ...], runner: InductorRunner, entry: Entry) -> None:
    module, inputs = toy.Toy(5), toy.inputs(*call)
    torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))


def test_loading_needs_no_cpu_probe_and_no_compiler(entry: Entry, tmp_path: Path) -> None:
    """A fresh process with an empty Inductor cache and no compiler on PATH loads and runs the graph."""
    script = """
import json, subprocess, sys, torch
started = []
sys.addaudithook(lambda event, args: started.append(str(args[0])) if event == "subprocess.Popen" else None)
from pathlib import Path
from onegraph.backends.inductor import InductorBackend
from support.models import toy
runner = InductorBackend().load(Path(sys.argv[1]), toy.CPU)
module = toy.Toy()
runner.bind({toy.PREFIX + n: p for n, p in module.named_parameters()})
inputs = toy.inputs()
print(json.dumps({"started": started, "difference": float((runner(*inputs) - module(*inputs)).abs().max())}))
"""
    env = {k: v for k, v in os.environ.items() if k not in ("CXX", "CC")}
    tests = str(Path(toy.__file__).parents[2])
    env |= {
        "PATH": str(tmp_path),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([tests, env.get("PYTHONPATH", "")]),
    }
    done = subprocess.run([sys.executable, "-c", script, str(entry.folder)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["started"] == []
    assert seen["difference"] < 1e-5
    assert not (tmp_path / "cache").exists() or not any((tmp_path / "cache").rglob("*.so"))


def test_binding_refuses_wrong_strides_of_a_weight(runner: InductorRunner, entry: Entry) -> None:
    module, inputs = toy.Toy(), toy.inputs()
    module.mix.weight = torch.nn.Parameter(module.mix.weight.t(), requires_grad=False)
    runner.bind({toy.PREFIX + n: p for n, p in module.named_parameters()})
    assert not torch.allclose(runner(*inputs), module(*inputs), atol=1e-3)  # the trap itself
    refused = binding.bind(runner, module, constants_of(entry), toy.CPU, toy.PREFIX)
    assert isinstance(refused, Refused)
    assert "mix.weight" in refused.text


def test_a_replaced_weight_is_stale_until_rebound(runner: InductorRunner, entry: Entry) -> None:
    module, inputs = toy.Toy(), toy.inputs()
    bound = binding.bind(runner, module, constants_of(entry), toy.CPU, toy.PREFIX)
    assert not isinstance(bound, Refused)
    kept = module.mix.weight  # alive, so that the stale address is not dangling in this test
    module.mix.weight = torch.nn.Parameter(kept * 3, requires_grad=False)
    assert not torch.allclose(runner(*inputs), module(*inputs), atol=1e-3)  # the trap itself
    assert not bound[0].holds(module)
    torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))


def test_values_changed_in_place_show_at_once(runner: InductorRunner, entry: Entry) -> None:
    module, inputs = toy.Toy(), toy.inputs()
    run(runner, entry, module, *inputs)
    module.mix.weight.mul_(1.5)
    torch.testing.assert_close(runner(*inputs), module(*inputs))


def test_a_runner_keeps_no_weight_it_was_bound_to(runner: InductorRunner, entry: Entry) -> None:
    """The loader itself keeps every tensor that it is given."""
    inputs, gone = toy.inputs(), []
    for seed in range(3):
        module = toy.Toy(seed)
        torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))
        gone += [weakref.ref(p.untyped_storage()) for p in module.parameters()]
        del module
    gc.collect()
    assert [ref() for ref in gone if ref() is not None] == []


def test_only_what_has_moved_is_bound_again(runner: InductorRunner, entry: Entry) -> None:
    """As a LoRA moves some weights; the others, and those changed in place, are still read where they are."""
    module, inputs = toy.Toy(1), toy.inputs()
    run(runner, entry, module, *inputs)
    module.mix.weight = torch.nn.Parameter(module.mix.weight * 2, requires_grad=False)
    module.out.bias.add_(1.5)
    torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))


def test_weights_in_a_larger_storage_are_read_in_place(runner: InductorRunner, entry: Entry) -> None:
    module, inputs = toy.Toy(1), toy.inputs()
    whole = torch.randn(10_000)
    used = 16
    for parameter in module.parameters():
        parameter.data = whole[used : used + parameter.numel()].view(parameter.shape)
        used += 16 * (1 + parameter.numel() // 16)
    torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))
    whole.mul_(0.5)
    torch.testing.assert_close(runner(*inputs), module(*inputs))


MANY_CALLS = """
import sys, torch
from pathlib import Path
from onegraph.backends.inductor import InductorBackend
from support.models import toy
torch.set_num_threads(int(sys.argv[2]))
torch.set_grad_enabled(False)
runner, module = InductorBackend().load(Path(sys.argv[1]), toy.CPU), toy.Reducing()
runner.bind({toy.PREFIX + n: p for n, p in module.named_parameters()})
for number in range(300):
    inputs = toy.inputs(2, 32, 32)
    result = runner(*inputs)
    if number % 50 == 0:
        torch.testing.assert_close(result, module(*inputs))
print("done")
"""


@pytest.mark.full
@pytest.mark.parametrize("shapes", ["exact", "any size"])
def test_a_graph_for_two_threads_runs_with_any_number(
    shapes: str, tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code for a fixed number of threads writes past its buffers where there are more (SIGSEGV)."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    spec = toy.exact(2, 32, 32) if shapes == "exact" else toy.shapes()
    graph = Registry(Store(tmp_path)).obtain(toy.request(toy.Reducing(), source, spec=spec), "wait", lambda _: None)
    assert isinstance(graph, LoadedGraph), graph
    tests = str(Path(toy.__file__).parents[2])
    for threads in (1, 8):
        env = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-c", MANY_CALLS, str(graph.entry.folder), str(threads)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "done\n"), (threads, done.returncode, done.stderr[-500:])
