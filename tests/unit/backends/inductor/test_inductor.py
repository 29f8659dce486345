"""What the Inductor backend refuses, and what it sets while it compiles."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch
from support.models import toy

from onegraph.backends.inductor import InductorBackend


def test_without_a_compiler_cached_graphs_still_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    backend = InductorBackend()
    assert backend.can_run(toy.CPU).ok
    refused = backend.can_compile(toy.CPU)
    assert not refused.ok
    assert "no C++ compiler" in refused.text


def test_an_old_torch_is_refused_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    refused = InductorBackend().can_run(toy.CPU)
    assert not refused.ok
    assert "2.5.1" in refused.text


def test_the_target_names_what_machine_code_depends_on() -> None:
    target = InductorBackend().target(toy.CPU)
    assert set(target) == {"torch", "platform", "machine", "device", "cpu"}
    assert target["torch"] == torch.__version__


def test_our_decompositions_leave_torchs_table_alone() -> None:
    from torch._inductor.decomposition import decompositions as table

    from onegraph.backends.inductor import decompositions, settings

    before = dict(table)
    attention = torch.ops.aten._scaled_dot_product_efficient_attention.default
    for capability in (8, 9):
        with settings.own_decompositions(capability):
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

    from onegraph.backends.inductor import settings

    class Features:
        reduction_numel = sympy.Integer(elements)

        def get_reduction_hint(self) -> ReductionHint:
            return ReductionHint[hint]

    class Graph:
        sizevars = SizeVarAllocator()

    monkeypatch.setattr(choices.InductorChoices, "should_use_persistent_reduction", staticmethod(lambda *_: False))
    before = virtualized.V.choices
    with settings.persistent_rows(), virtualized.V.set_graph_handler(Graph()):  # type: ignore[arg-type]
        decide = virtualized.V.choices.should_use_persistent_reduction
        assert decide(Features(), False) == at_once  # type: ignore[arg-type]
        assert not decide(Features(), True)  # type: ignore[arg-type]
    assert virtualized.V.choices is before


def flags_for(device: str) -> list[str]:
    from torch._inductor import cpp_builder

    from onegraph.backends.inductor import settings

    before = cpp_builder._get_optimization_cflags
    with settings.compiler_flags(torch.device(device)):
        flags: list[str] = cpp_builder._get_optimization_cflags("g++")[0]
    assert cpp_builder._get_optimization_cflags is before
    return flags


def test_cpu_code_beside_a_gpu_is_built_for_any_cpu() -> None:
    """Else another machine with the same card compiles again."""
    assert [f for f in flags_for("cuda") if f.startswith(("march", "mcpu"))] == [
        "march=x86-64" if platform.machine() == "x86_64" else "march=armv8-a"
    ]


def test_cpu_kernels_are_for_this_cpu_and_compile_soon() -> None:
    flags = flags_for("cpu")
    assert "O2" in flags
    assert "O3" not in flags
    assert "g1" not in flags, "line tables, which the linker drops"
    assert [f for f in flags if f.startswith(("march", "mcpu"))] != ["march=x86-64"]


def test_triton_is_not_read_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import codecache

    from onegraph.backends.inductor import settings

    monkeypatch.setattr(codecache, "triton_key", lambda: pytest.fail("all of Triton was read"))
    codecache.CacheBase.get_system.cache_clear()
    before = codecache.CacheBase.get_system
    with settings.without_triton_digest():
        codecache.PersistentCache()
    assert codecache.CacheBase.get_system is before


@pytest.mark.parametrize(("by_way_of", "rounds"), [(torch.bfloat16, True), (torch.float64, False)])
def test_a_model_of_32_bits_that_rounds_to_16_is_rounded_where_it_says(by_way_of: torch.dtype, rounds: bool) -> None:
    from onegraph.backends.inductor import settings

    class Rounding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x.to(by_way_of).float()

    program = torch.export.export(Rounding(), (torch.ones(4),))
    assert settings.own_rounding(program) == ({"emulate_precision_casts": True} if rounds else {})


@pytest.mark.parametrize(("dtype", "rounds"), [(torch.float32, True), (torch.bfloat16, False)])
def test_a_call_of_32_bits_with_weights_of_16_is_rounded_where_it_says(dtype: torch.dtype, rounds: bool) -> None:
    """As a norm does that adds 1 to its weight: in float32, the sum is another weight."""
    from onegraph.backends.inductor import settings

    class AddingOne(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.weight + 1.0).to(x.dtype) * x

    program = torch.export.export(AddingOne(), (torch.ones(4, dtype=dtype),))
    assert settings.own_rounding(program) == ({"emulate_precision_casts": True} if rounds else {})
