"""The traps of AOTInductor, each as a test on a really compiled graph."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import toy

from onegraph.compiler import binding
from onegraph.compiler.backends.inductor import InductorBackend, InductorRunner
from onegraph.compiler.shapes import Refused, TensorCall
from onegraph.graph_cache.store import Entry, Store


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
from onegraph.compiler.backends.inductor import InductorBackend
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


@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 4, 6)])
@pytest.mark.parametrize("affine", [True, False])
def test_the_group_norm_for_gpus_is_a_group_norm(shape: tuple[int, ...], affine: bool) -> None:
    from onegraph.compiler.backends.inductor import _group_norm

    x = 3 * torch.randn(shape) + 5
    weight, bias = (torch.randn(shape[1]), torch.randn(shape[1])) if affine else (None, None)
    result, mean, rstd = _group_norm(x, weight, bias, shape[0], shape[1], x[0, 0].numel(), 2, 1e-5)
    wanted = torch.native_group_norm(x, weight, bias, shape[0], shape[1], x[0, 0].numel(), 2, 1e-5)
    for one, other in zip((result, mean, rstd), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mean", [0.0, 300.0])
@pytest.mark.parametrize("outlier", [0.0, 1e3])
def test_the_group_norm_for_gpus_is_exact_far_from_zero_and_beside_outliers(mean: float, outlier: float) -> None:
    from onegraph.compiler.backends.inductor import _group_norm

    torch.manual_seed(0)
    x = torch.randn(1, 4, 96, 80) + mean
    x[0, :, 0, 0] += outlier
    given = (None, None, 1, 4, 96 * 80, 2, 1e-6)
    wanted = torch.native_group_norm(x.double(), *given)[0]
    ours, torchs = (
        float((result[0].double() - wanted).norm() / wanted.norm())
        for result in (_group_norm(x, *given), torch.native_group_norm(x, *given))
    )
    print(f"relative L2 {ours:.1e}, torch's {torchs:.1e}")
    assert ours < max(4 * torchs, 1e-6)


def test_our_decompositions_leave_torchs_table_as_it_was() -> None:
    from torch._inductor.decomposition import decompositions

    from onegraph.compiler.backends import inductor

    before = dict(decompositions)
    attention = torch.ops.aten._scaled_dot_product_efficient_attention.default
    for capability in (8, 9):
        with inductor._own_decompositions(capability):
            assert decompositions[torch.ops.aten.native_group_norm.default] is inductor._group_norm
            assert (decompositions.get(attention) is inductor._wide_attention) == (capability == 9)
        assert decompositions == before


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

    from onegraph.compiler.backends import inductor

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


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    from onegraph.compiler.backends.inductor import _wide_attention

    result: torch.Tensor = _wide_attention(query, key, value, None, False)[0]
    return result


def _heads(rows: int, size: float = 1.0) -> list[torch.Tensor]:
    return [size * torch.randn(2, 1, rows, 512).to(torch.bfloat16) for _ in range(3)]


def _error(result: torch.Tensor, heads: list[torch.Tensor]) -> float:
    exact = torch.nn.functional.scaled_dot_product_attention(*(t.double() for t in heads))
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("traced_at", [64, 100])
def test_wide_attention_traced_at_one_size_is_right_at_all(traced_at: int) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.manual_seed(0)
    traced = make_fx(_attend, tracing_mode="symbolic")(*_heads(traced_at))
    for rows in (1, 2, 4, 7, 8, 9, 64, 100, 131):
        heads = _heads(rows)
        assert _error(traced(*heads), heads) < 4e-3, rows


@pytest.mark.parametrize("size", [1e-18, 1e-3, 1e3, 1e18])
def test_wide_attention_does_not_overflow_where_float16_would(size: float) -> None:
    torch.manual_seed(0)
    query, key, value = _heads(40)
    heads = [query * size, key / size, value]  # scores as before, from numbers that float16 has not
    assert _error(_attend(*heads), heads) < 4e-3
    heads = [query * min(size, 30.0), key, value]
    assert torch.isfinite(_attend(*heads)).all()


def test_other_attention_is_left_to_torch() -> None:
    from onegraph.compiler.backends.inductor import _wide_attention

    query, key, value = _heads(8)
    assert _wide_attention(query[..., :256], key[..., :256], value[..., :256], None, False) is NotImplemented
    assert _wide_attention(query.float(), key.float(), value.float(), None, False) is NotImplemented
    assert _wide_attention(query, key, value, torch.zeros(8, 8), False) is NotImplemented
    assert _wide_attention(query, key, value, None, True) is NotImplemented
    assert _wide_attention(query, key, value, None, False, 0.0, True) is NotImplemented


class _Upsampled(torch.nn.Module):
    def __init__(self, factor: int, by_size: bool) -> None:
        super().__init__()
        self.factor, self.by_size = factor, by_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2:]
        if self.by_size:
            size = (self.factor * height, self.factor * width)
            return torch.nn.functional.interpolate(x, size=size, mode="nearest") + 1
        return torch.nn.functional.interpolate(x, scale_factor=float(self.factor), mode="nearest") + 1


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("factor", [2, 3])
def test_doubling_is_written_as_copies_and_anything_else_is_left_alone(factor: int, by_size: bool) -> None:
    from onegraph.compiler.backends import inductor

    module = _Upsampled(factor, by_size)
    height, width = (torch.export.Dim(name, min=2, max=64) for name in ("height", "width"))
    exported = torch.export.export(
        module, (torch.zeros(2, 3, 4, 6),), strict=False, dynamic_shapes=({2: height, 3: width},)
    )
    inductor._double_by_copies(exported)
    left = exported.graph.find_nodes(op="call_function", target=torch.ops.aten.upsample_nearest2d.vec)
    assert len(left) == (factor == 3)
    for shape in ((2, 3, 5, 7), (2, 3, 64, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(exported.module()(x), module(x), rtol=0, atol=0)
