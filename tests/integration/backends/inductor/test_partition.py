"""Cutting graphs: the regions, run one after the other, are the graph; alike regions are one type."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import torch
from support.models import toy
from torch.fx.experimental.proxy_tensor import make_fx

from onegraph.backends.inductor import partition, repetition
from onegraph.backends.inductor.decompositions import double_by_copies, group_norm
from onegraph.backends.inductor.graph_body import GraphBody
from onegraph.backends.inductor.plan import RegionPlan, Step
from onegraph.backends.inductor.repetition import CompileTime
from onegraph.common.outputs import output_of
from onegraph.compiler import export
from onegraph.runtime.graphs.faithfulness import relative_l2

REGION_COSTS = 60


def cut(graph: torch.export.ExportedProgram, workers: int = 1, region_costs: int = 4) -> Any:
    """As if regions cost little, which makes small graphs worth cutting."""
    return partition.cut(graph, CompileTime(workers, region_costs))


@functools.cache
def deep() -> torch.export.ExportedProgram:
    """The default module's program, exported once: cutting changes no program."""
    return exported(toy.Deep())


def exported(module: torch.nn.Module, spec: Any = None) -> torch.export.ExportedProgram:
    from onegraph.backends import get

    with get("inductor").capture_settings():
        return export.capture(toy.Call(module), spec or toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)


def run(plan: RegionPlan, modules: list[Any], module: torch.nn.Module, *inputs: torch.Tensor) -> Any:
    """The regions in eager, with the weights of `module`; what a plan says is freed is freed."""
    weights = dict(toy.Call(module).named_parameters())
    values = dict(enumerate(inputs))
    for step, freed in zip(plan.steps, plan.last_uses(), strict=True):
        region = modules[step.region_type]
        for number, name in enumerate(step.weights):
            setattr(region, f"w{number}", weights[name])
        values.update(zip(step.outputs, region(*(values[i] for i in step.inputs)), strict=True))
        for value in freed:
            del values[value]
    assert set(values) == {*range(plan.input_count), *plan.results}
    return output_of([values[number] for number in plan.results])


@pytest.mark.parametrize("call", [(2, 8, 8, 5), (1, 4, 32, 64), (4, 17, 9, 1)])
def test_the_regions_are_the_graph(call: tuple[int, ...]) -> None:
    found = cut(deep())
    assert found is not None
    plan, modules = found
    inputs = toy.inputs(*call)
    for seed in (0, 1):
        module = toy.Deep(seed)
        torch.testing.assert_close(run(plan, modules, module, *inputs), module(*inputs))


def test_blocks_with_other_weights_are_one_region_type() -> None:
    found = cut(exported(toy.Deep(wide=4, narrow=3)))
    assert found is not None
    plan, modules = found
    uses = sorted([step.region_type for step in plan.steps].count(number) for number in range(len(modules)))
    assert uses[-2:] == [3, 4]
    assert [name for step in plan.steps for name in step.weights if "wide.2." in name] == [
        f"toy.wide.2.{name}" for name in ("mix.weight", "mix.bias", "context.weight", "context.bias")
    ]


def test_every_weight_is_some_regions_weight() -> None:
    found = cut(deep())
    assert found is not None
    used = {name for step in found[0].steps for name in step.weights}
    assert used == {toy.PREFIX + name for name, _ in toy.Deep().named_parameters()}


def test_exact_sizes_are_cut_as_well() -> None:
    found = cut(exported(toy.Deep(), toy.exact()))
    assert found is not None
    module, inputs = toy.Deep(3), toy.inputs()
    torch.testing.assert_close(run(*found, module, *inputs), module(*inputs))


def test_a_block_at_another_size_is_another_type() -> None:
    """Same classes and code, other channels: compiled code would be wrong for one of them."""
    found = cut(exported(toy.Deep(wide=3, narrow=3)))
    assert found is not None
    plan, _ = found
    types = {name.split(".")[1]: step.region_type for step in plan.steps for name in step.weights}
    assert types["wide"] != types["narrow"]


def test_a_module_with_few_repeats_stays_whole() -> None:
    assert cut(exported(toy.Toy())) is None
    assert cut(exported(toy.Deep(wide=1, narrow=1))) is None


def test_a_small_graph_stays_whole() -> None:
    assert cut(deep()) is not None
    assert cut(deep(), 1, 1000) is None


def test_a_plan_is_the_same_after_a_file() -> None:
    found = cut(deep())
    assert found is not None
    assert RegionPlan.from_json(json.loads(json.dumps(found[0].to_json()))) == found[0]


def test_the_format_of_a_plan_on_disk_stays() -> None:
    plan = RegionPlan(2, (Step(0, ("a.weight",), (0, 1), (2,)), Step(1, (), (0, 1, 2), (3,))), (3,))
    assert json.dumps(plan.to_json()) == (
        '{"given": 2, "steps": [{"kind": 0, "weights": ["a.weight"], "inputs": [0, 1], "outputs": [2]}, '
        '{"kind": 1, "weights": [], "inputs": [0, 1, 2], "outputs": [3]}], "result": [3]}'
    )


def test_regions_give_several_results() -> None:
    found = cut(exported(toy.Several()))
    assert found is not None
    plan, modules = found
    assert len(plan.results) == 4
    assert len({step.region_type for step in plan.steps}) < len(plan.steps)
    module, inputs = toy.Several(4), toy.inputs(4, 17, 9, 1)
    torch.testing.assert_close(run(plan, modules, module, *inputs), toy.several(module, *inputs))
    assert RegionPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_result_that_nothing_computes_is_never_cut() -> None:
    """An input that is returned as it is belongs to no region."""

    class Passing(toy.Deep):
        def forward(self, x: torch.Tensor, context: torch.Tensor) -> Any:
            return super().forward(x, context), context

    assert GraphBody.of(exported(Passing())) is None


def test_two_workers_halve_a_graph_without_repeats() -> None:
    module = toy.Deep(length=200, wide=1, narrow=0)
    graph = exported(module)
    assert cut(graph, 1, REGION_COSTS) is None
    found = cut(graph, 2, REGION_COSTS)
    assert found is not None
    sizes = [sum(n.op == "call_function" for n in region.graph.nodes) for region in found[1]]
    assert len(sizes) == 2
    assert max(sizes) < 1.3 * min(sizes)
    inputs = toy.inputs(4, 17, 9, 1)
    torch.testing.assert_close(run(*found, module, *inputs), module(*inputs))


def test_for_two_workers_copies_are_compiled_once() -> None:
    found = cut(exported(toy.Deep(length=130, wide=6, narrow=0)), 2, REGION_COSTS)
    assert found is not None
    assert len(found[0].steps) > len(found[1])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_small_graph_is_whole_for_any_workers(workers: int) -> None:
    assert cut(exported(toy.Toy()), workers, REGION_COSTS) is None


def test_a_slice_ends_where_only_tensors_cross() -> None:
    """A chunk gives several tensors as one value, which no region can give to another."""
    body = GraphBody.of(exported(toy.Deep(length=3, wide=3)))
    assert body is not None
    for count in range(2, 12):
        runs = repetition.slices(body, count)
        assert [i for run_ in runs for i in run_] == list(range(len(body.nodes)))
        for end in (r.stop for r in runs[:-1]):
            crossing = [n for n in body.nodes[:end] if any(u in body.nodes[end:] for u in n.users)]
            assert all(isinstance(n.meta["val"], torch.Tensor) for n in crossing)


@pytest.mark.full
def test_blocks_in_a_row_are_joined_where_it_pays() -> None:
    """Each region costs a call some microseconds: twenty equal blocks as ten regions of two, compiled once."""
    module = toy.Deep(length=8, wide=20, narrow=0)
    graph = exported(module)
    single = cut(graph, 3, 20)
    assert single is not None
    inputs = toy.inputs(4, 17, 9, 1)
    torch.testing.assert_close(run(*single, module, *inputs), module(*inputs))
    joined = cut(graph, 3, 250)
    assert joined is not None
    assert len(joined[0].steps) < len(single[0].steps)
    torch.testing.assert_close(run(*joined, module, *inputs), module(*inputs))


@pytest.mark.parametrize(("most", "together"), [(10, 1), (20, 2), (29, 2), (30, 3), (59, 3), (60, 6), (1000, 6)])
def test_as_many_as_fit_are_joined(most: int, together: int) -> None:
    copies = [range(start, start + 10) for start in (0, 10, 20, 30, 40, 50, 100, 110, 120, 130, 140, 150)]
    joined = repetition._joined(copies, most)
    assert {len(run_) for run_ in joined} == {10 * together}
    assert [i for run_ in joined for i in run_] == [i for copy in copies for i in copy]


class _Decoder(torch.nn.Module):
    """Blocks of convolutions as a VAE has them, with a turned and an expanded tensor between two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = torch.nn.ModuleList(torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(8))
        self.norms = torch.nn.ModuleList(torch.nn.GroupNorm(2, 8) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            turned, expanded = x.transpose(1, 2), x.mean(2, keepdim=True).expand_as(x)
            x = x + convolution(torch.nn.functional.silu(norm(x)))
            x = x + torch.tanh(turned).transpose(1, 2) * expanded
            if number % 3 == 1:
                x = torch.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
        return x


@pytest.fixture(scope="module")
def decoder() -> torch.export.ExportedProgram:
    """As it is for a GPU, where upsampling gives channels last and the export does not tell that of what follows."""
    sizes = {dim: torch.export.Dim(name, min=2, max=64) for dim, name in ((2, "height"), (3, "width"))}
    with torch.no_grad():
        program = torch.export.export(_Decoder(), (torch.zeros(2, 8, 4, 6),), strict=False, dynamic_shapes=(sizes,))
    double_by_copies(program)
    return program


@pytest.mark.parametrize("count", [2, 3, 4, 6, 8, 11, 16, 40])
def test_what_crosses_has_the_layout_that_its_readers_are_compiled_for(
    decoder: torch.export.ExportedProgram, count: int
) -> None:
    graph = GraphBody.of(decoder)
    assert graph is not None
    assembled = partition._assemble(graph, repetition.slices(graph, count))
    assert assembled is not None
    plan, modules = assembled
    made: dict[int, str] = {}
    read = 0
    for step in plan.steps:
        module = modules[step.region_type]
        given = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        for number, one in zip(step.inputs, given, strict=True):
            read += number in made
            assert made.get(number, str(one.stride())) == str(one.stride())
        traced = make_fx(module, {torch.ops.aten.native_group_norm.default: group_norm})(*given)  # as Inductor does
        values = [node.meta["val"] for node in traced.graph.output_node().args[0]]
        made.update(zip(step.outputs, [str(value.stride()) for value in values], strict=True))
    assert read >= count - 1
    x = torch.randn(2, 8, 5, 7, generator=torch.Generator().manual_seed(count))
    values = {0: x}
    for step in plan.steps:
        region = modules[step.region_type]
        for number, name in enumerate(step.weights):
            setattr(region, f"w{number}", decoder.state_dict[name])
        values.update(zip(step.outputs, region(*(values[number] for number in step.inputs)), strict=True))
    expected = decoder.module()(x)
    assert relative_l2(values[plan.results[0]], expected) < 1e-6  # a value read in another layout: 1.3
