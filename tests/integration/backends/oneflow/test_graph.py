"""Programs, jobs and loaded graphs on a small module with every kind of operation."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from onegraph.backends.oneflow import OneFlowBackend, OneFlowRunner, counters, library, program, runtime
from onegraph.backends.oneflow.graph import DESCRIPTION_FILE, JOB_FILE, Description
from onegraph.common.errors import BindError, CompileError, LoadError
from onegraph.compiler import export
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.signature.declared import Dim, ShapeRange, TensorSpec

from .conftest import CPU, Block, Built, Call, exported, inputs, needs_oneflow, weights

pytestmark = needs_oneflow
CLOSE = 1e-5  # relative L2, float32


def difference(runner: OneFlowRunner, module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> float:
    return relative_l2(runner(*given), module(*given))


def small(module: torch.nn.Module, dtype: str = "float32", folder: Path | None = None) -> list[str]:
    """Compile a module of one input [4, 8]."""
    spec = ShapeRange((Dim("rows", 4, 4),), (TensorSpec("x", ("rows", 8), dtype),))
    backend = OneFlowBackend()
    with backend.capture_settings():
        captured = export.capture(module, spec, {}, CPU)
    assert folder is not None
    return backend.compile(captured, (torch.zeros(4, 8, dtype=getattr(torch, dtype)),), folder)


# Values -------------------------------------------------------------------------------------------------------


def test_a_graph_computes_what_eager_does(runner: OneFlowRunner) -> None:
    module = Call(Block(3))
    assert set(runner.constant_names()) == set(weights(module))
    runner.bind(weights(module))
    assert difference(runner, module, inputs()) < CLOSE


@pytest.mark.parametrize("call", [(1, 8, 8, 5), (2, 5, 9, 1), (4, 4, 32, 64)])
def test_other_sizes_are_built_from_the_kept_program(call: tuple[int, ...], built_once: Built, tmp_path: Path) -> None:
    module, given = Call(Block(1)), inputs(*call)
    files = built_once.backend.rebuild(built_once.folder, given, tmp_path)
    assert set(files) == {path.name for path in tmp_path.iterdir()}
    loaded = built_once.backend.load(tmp_path, CPU)
    loaded.bind(weights(module))
    assert difference(loaded, module, given) < CLOSE
    loaded.close()


def test_inputs_may_be_reused_and_results_stay(runner: OneFlowRunner) -> None:
    module, given = Call(Block()), inputs()
    runner.bind(weights(module))
    expected = module(*given)
    for _ in range(5):
        first = runner(*given)
        for tensor, copy in zip(given, [t.clone() for t in given], strict=True):
            tensor.fill_(7)
            runner(*given)
            tensor.copy_(copy)
        assert relative_l2(first, expected) < CLOSE


def test_inputs_need_not_be_contiguous(runner: OneFlowRunner) -> None:
    module, given = Call(Block()), inputs()
    runner.bind(weights(module))
    x = given[0].to(memory_format=torch.channels_last)
    assert not x.is_contiguous()
    assert relative_l2(runner(x, *given[1:]), module(*given)) < CLOSE


# Programs -----------------------------------------------------------------------------------------------------


def test_a_program_survives_its_file(built_once: Built, tmp_path: Path) -> None:
    kept = program.Program.read(built_once.folder)
    kept.write(tmp_path)
    assert program.Program.read(tmp_path) == kept
    assert (tmp_path / program.PROGRAM_FILE).read_bytes() == (built_once.folder / program.PROGRAM_FILE).read_bytes()
    data = json.loads((tmp_path / program.PROGRAM_FILE).read_text())
    norm = next(o for o in data["operations"] if o["op"] == "aten.group_norm.default")
    assert norm["module"] == "module.norm (GroupNorm)"


def test_sizes_outside_the_program_are_refused(built_once: Built, tmp_path: Path) -> None:
    for wrong in (inputs(batch=5), inputs(height=40), (*inputs()[:2], torch.randn(3, 5, 8)), inputs()[:2]):
        with pytest.raises(CompileError, match="program"):
            built_once.backend.rebuild(built_once.folder, wrong, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_damaged_program_is_refused(built: Built, tmp_path: Path) -> None:
    (built.folder / program.PROGRAM_FILE).write_text('{"version": 1}')
    with pytest.raises(CompileError, match="cannot be read"):
        built.backend.rebuild(built.folder, inputs(), tmp_path)


def test_an_unknown_operation_is_named_with_its_module(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cumsum(x, 1)

    with pytest.raises(CompileError, match=r"no aten\.cumsum\.default, which module \(Odd\) uses; use the inductor"):
        small(Call1(Odd()), folder=tmp_path)


class Call1(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(x)
        return result


def test_half_precision_without_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no float16 kernels for the CPU"):
        small(Call1(torch.nn.Linear(8, 8).half()), "float16", tmp_path)


def test_half_precision_weights_the_model_casts_work(tmp_path: Path) -> None:
    class Cast(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))

    module, x = Call1(Cast(8, 8).half().requires_grad_(False)), torch.randn(4, 8)
    small(module, folder=tmp_path)
    loaded = OneFlowBackend().load(tmp_path, CPU)
    loaded.bind(weights(module))
    assert relative_l2(loaded(x), module(x)) < CLOSE
    loaded.close()


def test_several_outputs(tmp_path: Path) -> None:
    class Several(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            h = super().forward(x)
            return h, [x * 2, h.reshape(8, 4)], h

    module, x = Call1(Several(8, 8).requires_grad_(False)), torch.randn(4, 8)
    small(module, folder=tmp_path)
    loaded = OneFlowBackend().load(tmp_path, CPU)
    loaded.bind(weights(module))
    first, (doubled, reshaped), again = module(x)
    for _ in range(2):
        results = loaded(x)
        torch.testing.assert_close(results, (first, doubled, reshaped, again))
        results[0].mul_(2)  # each is the caller's own
        torch.testing.assert_close(results[3], again)
    loaded.close()


# Weights ------------------------------------------------------------------------------------------------------


def test_values_changed_in_place_show_at_once(runner: OneFlowRunner) -> None:
    module, given = Call(Block()), inputs()
    runner.bind(weights(module))
    runner(*given)
    for weight in weights(module).values():
        weight.mul_(1.5)
    assert difference(runner, module, given) < CLOSE


def test_binding_a_new_weight_never_writes_the_old_one(runner: OneFlowRunner) -> None:
    block = Block()
    module, given = Call(block), inputs()
    runner.bind(weights(module))
    inits, original, values = counters.inits, block.q.weight, block.q.weight.clone()
    block.q.weight = torch.nn.Parameter(original * 3, requires_grad=False)
    runner.bind(weights(module))
    assert difference(runner, module, given) < CLOSE
    assert counters.inits == inits + 1
    block.q.weight.mul_(0.5)  # in place, in a tensor of which the graph has a copy
    runner.bind(weights(module))
    assert difference(runner, module, given) < CLOSE
    block.q.weight = torch.nn.Parameter(original * -1, requires_grad=False)  # replaced once more
    runner.bind(weights(module))
    assert difference(runner, module, given) < CLOSE
    block.q.weight = original  # and back
    runner.bind(weights(module))
    assert difference(runner, module, given) < CLOSE
    assert counters.inits == inits + 1
    assert torch.equal(original, values)


def test_another_model_is_shared_and_not_copied(runner: OneFlowRunner) -> None:
    given = inputs()
    held = 0
    for seed in (1, 2):
        module = Call(Block(seed))
        runner.bind(weights(module))
        assert difference(runner, module, given) < CLOSE
        held = held or runner.held_bytes
        assert runner.held_bytes == held
        next(iter(weights(module).values())).mul_(2)
        assert difference(runner, module, given) < CLOSE


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda t: t[:4].clone(), "the graph was compiled for float32"),
        (lambda t: t.double(), "float64"),
        (lambda t: t.half(), "float16"),
        (lambda t: t.t(), "not contiguous"),
        (lambda t: t.to("meta"), "on meta"),
        (lambda t: t.to_sparse(), "sparse"),
        (None, "lacks the weight module.q.weight"),
    ],
)
def test_a_refused_weight_leaves_the_graph_as_it_was(wrong: object, message: str, runner: OneFlowRunner) -> None:
    module, given = Call(Block()), inputs()
    runner.bind(weights(module))
    tensors = weights(module)
    if callable(wrong):
        tensors["module.q.weight"] = wrong(tensors["module.q.weight"])
    else:
        del tensors["module.q.weight"]
    with pytest.raises(BindError, match=message):
        runner.bind(tensors)
    assert difference(runner, module, given) < CLOSE


def test_a_wrong_input_is_refused(runner: OneFlowRunner) -> None:
    with pytest.raises(BindError, match="no weights yet"):
        runner(*inputs())
    runner.bind(weights(Call(Block())))
    x, t, context = inputs()
    for wrong in ((x[:1], t, context), (x.double(), t, context), (x.to("meta"), t, context), (x, t)):
        with pytest.raises(BindError, match=r"compiled for|plain tensors on cpu|3 inputs"):
            runner(*wrong)


# Memory -------------------------------------------------------------------------------------------------------


def test_a_graph_larger_than_free_memory_is_not_built(built_once: Built, tmp_path: Path) -> None:
    needed = built_once.backend.estimate_memory(built_once.folder)
    assert needed > 10_000
    poor = OneFlowBackend(free_memory=lambda device: needed - 1)
    inits = counters.inits
    with pytest.raises(CompileError, match=r"OneFlow would hold .* for this graph, .* are free; use a smaller size"):
        poor.rebuild(built_once.folder, inputs(), tmp_path)
    assert not any(tmp_path.iterdir())
    with pytest.raises(LoadError, match="OneFlow would hold"):
        poor.load(built_once.folder, CPU)
    free = [needed, needed - 1]
    loaded = OneFlowBackend(free_memory=lambda device: free.pop(0) if len(free) > 1 else free[0]).load(
        built_once.folder, CPU
    )
    with pytest.raises(BindError, match="OneFlow would hold"):
        loaded.bind(weights(Call(Block())))
    assert counters.inits == inits


def test_closing_the_last_graph_gives_its_memory_back(built_once: Built) -> None:
    module, given = Call(Block()), inputs()
    first, second = built_once.load(), built_once.load()
    for runner in (first, second):
        runner.bind(weights(module))
    assert first.held_bytes == second.held_bytes >= built_once.backend.estimate_memory(built_once.folder)
    first.close()
    assert first.held_bytes > 0  # OneFlow frees nothing while another graph lives
    assert difference(second, module, given) < CLOSE
    second.close()
    assert first.held_bytes == second.held_bytes == 0
    first.bind(weights(module))
    assert difference(first, module, given) < CLOSE
    first.close()


def test_closing_lets_go_of_the_model(built_once: Built) -> None:
    module, runner = Call(Block()), built_once.load()
    runner.bind(weights(module))
    runner(*inputs())
    storage = StorageWeakRef(module.get_parameter("module.q.weight").untyped_storage())
    del module
    gc.collect()
    assert not storage.expired()  # a bound graph reads it
    runner.close()
    gc.collect()
    assert storage.expired()


def test_living_graphs_make_room_for_garbage_and_go_on(built_once: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = Call(Block()), inputs()
    first, second = built_once.load(), built_once.load()
    for runner in (first, second):
        runner.bind(weights(module))
    monkeypatch.setattr(runtime, "MOST_GARBAGE", 0)
    first.close()
    assert first.held_bytes == second.held_bytes == 0
    assert difference(second, module, given) < CLOSE
    assert second.held_bytes > 0
    second.close()


def test_a_graph_dropped_unclosed_keeps_no_model_alive(built_once: Built) -> None:
    module = Call(Block())
    runner = built_once.load()
    runner.bind(weights(module))
    runner(*inputs())
    storage = StorageWeakRef(module.get_parameter("module.q.weight").untyped_storage())
    garbage = runtime.memory.garbage
    held = runner.held_bytes
    del runner, module
    gc.collect()
    assert storage.expired()
    assert runtime.memory.garbage == garbage + held
    other = built_once.load()
    other.bind(weights(Call(Block())))
    other.close()
    assert runtime.memory.garbage == 0


# Files and processes ------------------------------------------------------------------------------------------


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def test_a_damaged_job_is_refused(built: Built) -> None:
    damage(built.folder / JOB_FILE)
    with pytest.raises(LoadError, match=r"damaged|cannot be read"):
        built.load()
    (built.folder / JOB_FILE).unlink()
    with pytest.raises(LoadError, match="cannot be read"):
        built.load()


@pytest.mark.parametrize("change", [{"oneflow": "0.8.0"}, {"device": "cuda:0"}, {"weights": []}, {"held_bytes": -1}])
def test_a_description_that_does_not_fit_is_refused(change: dict[str, object], built: Built) -> None:
    path = built.folder / DESCRIPTION_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LoadError):
        built.load()


def test_a_described_shape_the_job_lacks_is_refused(built: Built) -> None:
    path = built.folder / DESCRIPTION_FILE
    description = Description.model_validate_json(path.read_text())
    first, *others = description.weights
    wrong = description.model_copy(update={"weights": (first.model_copy(update={"shape": (1, 2)}), *others)})
    path.write_text(wrong.model_dump_json())
    with pytest.raises(LoadError, match="differ"):
        built.load()


def in_a_new_process(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    here = str(Path(__file__).parent)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, "-c", script, *arguments], env=env, capture_output=True, text=True)


def test_a_new_process_neither_captures_nor_lowers(built_once: Built) -> None:
    script = """
import sys, torch
from pathlib import Path
from typing import Any
from conftest import Block, Call, CPU, inputs, weights
from onegraph.backends.oneflow import OneFlowBackend, counters
module, given = Call(Block(4)), inputs()
runner = OneFlowBackend().load(Path(sys.argv[1]), CPU)
runner.bind(weights(module))
with torch.no_grad():
    difference = (runner(*given) - module(*given)).norm() / module(*given).norm()
assert "torch._export.non_strict_utils" not in sys.modules
print(counters.traces, counters.inits, float(difference) < 1e-5)
"""
    done = in_a_new_process(script, str(built_once.folder))
    assert done.returncode == 0, done.stderr  # the process ends well with the graph still loaded
    assert done.stdout.split() == ["0", "1", "True"]


@pytest.mark.parametrize("where", [pytest.param("main", marks=pytest.mark.full), "other"])
def test_ctrl_c_still_raises_keyboard_interrupt(where: str) -> None:
    script = """
import os, signal, sys, threading, time
from onegraph.backends.oneflow import library
signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python starts, unless a shell starts it in the background
if sys.argv[1] == "main":
    library.load()
else:
    thread = threading.Thread(target=library.load)
    thread.start()
    thread.join()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = in_a_new_process(script, where)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["interrupted"]


def test_graphs_run_from_several_threads(built_once: Built) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(seed: int) -> float:
        with torch.no_grad():
            module, given = Call(Block(seed)), inputs()
            runner = built_once.load()
            runner.bind(weights(module))
            worst = max(difference(runner, module, given) for _ in range(10))
            runner.close()
        return worst

    with ThreadPoolExecutor(3) as pool:
        assert max(pool.map(work, range(3))) < CLOSE


def test_the_export_of_the_module_is_not_changed(built_once: Built) -> None:
    captured = exported(Call(Block()))
    before = str(captured.graph)
    program.from_exported(captured)
    assert str(captured.graph) == before
    description = Description.model_validate_json((built_once.folder / DESCRIPTION_FILE).read_text())
    assert description.oneflow == library.VERSION
