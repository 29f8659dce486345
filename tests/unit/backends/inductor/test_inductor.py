"""The traps of AOTInductor, each as a test on a really compiled graph."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from support import toy

from onegraph.backends.inductor import InductorBackend, InductorRunner
from onegraph.common.shapes import Refused, TensorCall
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Entry, Store
from onegraph.runtime import binding
from onegraph.runtime.engine import Engine, Graph


@pytest.fixture
def entry(compiled_store: Path) -> Entry:
    return next(Store(compiled_store).entries())


@pytest.fixture
def runner(entry: Entry) -> InductorRunner:
    return InductorBackend().load(entry.folder, toy.CPU)


def constants(entry: Entry) -> tuple[binding.Constant, ...]:
    return tuple(binding.Constant(c.name, c.shape, c.stride, c.dtype) for c in entry.manifest.constants)


def run(runner: InductorRunner, entry: Entry, module: toy.Toy, *inputs: torch.Tensor) -> torch.Tensor:
    bound = binding.bind(runner, module, constants(entry), toy.CPU, toy.PREFIX)
    assert isinstance(bound, binding.Binding)
    return runner(*inputs)


def test_small_constants_are_not_inlined(runner: InductorRunner, entry: Entry) -> None:
    assert set(runner.constant_names()) == {toy.PREFIX + n for n, _ in toy.Toy().named_parameters()}
    for seed in (1, 2):  # two checkpoints that differ in every weight, the 4-element output bias included
        module, inputs = toy.Toy(seed), toy.inputs()
        torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))
    only_bias = toy.Toy(1)
    only_bias.out.bias.add_(torch.tensor([1.0, -2.0, 3.0, -4.0]))
    torch.testing.assert_close(run(runner, entry, only_bias, *inputs), only_bias(*inputs))


@pytest.mark.parametrize("call", [(1, 4, 4, 1), (1, 32, 32, 64), (4, 5, 31, 3), (2, 17, 9, 1)])
def test_one_graph_serves_the_whole_range(call: tuple[int, ...], runner: InductorRunner, entry: Entry) -> None:
    module, inputs = toy.Toy(5), toy.inputs(*call)
    torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))


def test_loading_neither_probes_the_cpu_nor_needs_a_compiler(entry: Entry, tmp_path: Path) -> None:
    """A fresh process with an empty Inductor cache and no compiler on PATH loads and runs the graph."""
    script = """
import json, subprocess, sys, torch
started = []
sys.addaudithook(lambda event, args: started.append(str(args[0])) if event == "subprocess.Popen" else None)
from pathlib import Path
from onegraph.backends.inductor import InductorBackend
from support import toy
runner = InductorBackend().load(Path(sys.argv[1]), toy.CPU)
module = toy.Toy()
runner.bind({toy.PREFIX + n: p for n, p in module.named_parameters()})
inputs = toy.inputs()
print(json.dumps({"started": started, "difference": float((runner(*inputs) - module(*inputs)).abs().max())}))
"""
    env = {k: v for k, v in os.environ.items() if k not in ("CXX", "CC")}
    tests = str(Path(toy.__file__).parents[1])
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": (5, 4, 8, 8)},
        {"shape": (2, 4, 3, 8)},
        {"shape": (2, 3, 8, 8)},
        {"dtype": "float16"},
        {"dtype": "float64"},
        {"device": "cuda:0"},
    ],
)
def test_the_graph_checks_no_inputs_so_admission_does(wrong: dict[str, object]) -> None:
    x = {"shape": (2, 4, 8, 8), "dtype": "float32", "device": "cpu"} | wrong
    context = TensorCall((x["shape"][0], 5, 8), "float32", "cpu")  # type: ignore[index]
    assert isinstance(toy.shapes().admits([TensorCall(**x), context], "cpu"), Refused)  # type: ignore[arg-type]


def test_the_graph_takes_wrong_strides_of_a_weight_silently_so_binding_refuses(
    runner: InductorRunner, entry: Entry
) -> None:
    module, inputs = toy.Toy(), toy.inputs()
    module.mix.weight = torch.nn.Parameter(module.mix.weight.t(), requires_grad=False)
    runner.bind({toy.PREFIX + n: p for n, p in module.named_parameters()})
    assert not torch.allclose(runner(*inputs), module(*inputs), atol=1e-3)  # the trap itself
    refused = binding.bind(runner, module, constants(entry), toy.CPU, toy.PREFIX)
    assert isinstance(refused, Refused)
    assert "mix.weight" in refused.reason


def test_the_graph_keeps_addresses_so_a_replaced_weight_is_stale_until_rebound(
    runner: InductorRunner, entry: Entry
) -> None:
    module, inputs = toy.Toy(), toy.inputs()
    bound = binding.bind(runner, module, constants(entry), toy.CPU, toy.PREFIX)
    assert isinstance(bound, binding.Binding)
    kept = module.mix.weight  # alive, so that the stale address is not dangling in this test
    module.mix.weight = torch.nn.Parameter(kept * 3, requires_grad=False)
    assert not torch.allclose(runner(*inputs), module(*inputs), atol=1e-3)  # the trap itself
    assert not bound.holds(module)
    torch.testing.assert_close(run(runner, entry, module, *inputs), module(*inputs))


def test_values_changed_in_place_show_at_once(runner: InductorRunner, entry: Entry) -> None:
    module, inputs = toy.Toy(), toy.inputs()
    run(runner, entry, module, *inputs)
    module.mix.weight.mul_(1.5)
    torch.testing.assert_close(runner(*inputs), module(*inputs))


def test_without_a_compiler_graphs_run_but_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    backend = InductorBackend()
    assert backend.can_run(toy.CPU).ok
    refused = backend.can_compile(toy.CPU)
    assert not refused.ok
    assert "no C++ compiler" in refused.reason


def test_an_old_torch_is_refused_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    refused = InductorBackend().can_run(toy.CPU)
    assert not refused.ok
    assert "2.5.1" in refused.reason


def test_the_target_names_what_machine_code_depends_on() -> None:
    target = InductorBackend().target(toy.CPU)
    assert set(target) == {"torch", "platform", "machine", "device", "cpu"}
    assert target["torch"] == torch.__version__


def test_our_decompositions_leave_torchs_table_as_it_was() -> None:
    from torch._inductor.decomposition import decompositions as table

    from onegraph.backends import inductor
    from onegraph.backends.inductor import decompositions

    before = dict(table)
    attention = torch.ops.aten._scaled_dot_product_efficient_attention.default
    for capability in (8, 9):
        with inductor._own_decompositions(capability):
            assert table[torch.ops.aten.native_group_norm.default] is decompositions.group_norm
            assert (table.get(attention) is decompositions.wide_attention) == (capability == 9)
        assert table == before


@pytest.mark.parametrize(
    ("elements", "hint", "at_once"), [(1280, "INNER", True), (4096, "INNER", False), (1280, "OUTER", False)]
)
def test_rows_of_a_layer_norm_are_reduced_at_once(
    elements: int, hint: str, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sympy
    from torch._inductor import choices, virtualized
    from torch._inductor.runtime.hints import ReductionHint
    from torch._inductor.sizevars import SizeVarAllocator

    from onegraph.backends import inductor

    class Features:
        reduction_numel = sympy.Integer(elements)

        def get_reduction_hint(self) -> ReductionHint:
            return ReductionHint[hint]

    class Graph:
        sizevars = SizeVarAllocator()

    monkeypatch.setattr(choices.InductorChoices, "should_use_persistent_reduction", staticmethod(lambda *_: False))
    before = virtualized.V.choices
    with inductor._own_choices(), virtualized.V.set_graph_handler(Graph()):  # type: ignore[arg-type]
        decide = virtualized.V.choices.should_use_persistent_reduction
        assert decide(Features(), False) == at_once  # type: ignore[arg-type]
        assert not decide(Features(), True)  # type: ignore[arg-type]
    assert virtualized.V.choices is before


def test_a_runner_keeps_no_weight_that_it_was_ever_bound_to(runner: InductorRunner, entry: Entry) -> None:
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


def test_weights_inside_a_larger_storage_are_read_at_their_place(runner: InductorRunner, entry: Entry) -> None:
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
from support import toy
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


@pytest.mark.slow
@pytest.mark.parametrize("shapes", ["exact", "any size"])
def test_a_graph_compiled_with_two_threads_runs_with_any_number(
    shapes: str, tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code for a fixed number of threads writes past its buffers where there are more (SIGSEGV)."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    spec = toy.exact(2, 32, 32) if shapes == "exact" else toy.shapes()
    graph = Engine(Store(tmp_path)).obtain(toy.request(toy.Reducing(), source, spec=spec), "wait", lambda _: None)
    assert isinstance(graph, Graph), graph
    tests = str(Path(toy.__file__).parents[1])
    for threads in (1, 3, 8):
        env = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-c", MANY_CALLS, str(graph.entry.folder), str(threads)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "done\n"), (threads, done.returncode, done.stderr[-500:])


def flags_for(device: str) -> list[str]:
    from torch._inductor import cpp_builder

    from onegraph.backends import inductor

    before = cpp_builder._get_optimization_cflags
    with inductor._own_flags(torch.device(device)):
        flags: list[str] = cpp_builder._get_optimization_cflags("g++")[0]
    assert cpp_builder._get_optimization_cflags is before
    return flags


def test_on_a_gpu_code_for_the_cpu_is_built_for_any_cpu() -> None:
    """Else another machine with the same card compiles again."""
    assert [f for f in flags_for("cuda") if f.startswith(("march", "mcpu"))] == [
        "march=x86-64" if platform.machine() == "x86_64" else "march=armv8-a"
    ]


def test_kernels_for_a_cpu_are_built_for_this_one_at_the_level_that_compiles_sooner() -> None:
    flags = flags_for("cpu")
    assert "O2" in flags
    assert "O3" not in flags
    assert [f for f in flags if f.startswith(("march", "mcpu"))] != ["march=x86-64"]
