"""Cutting an exported graph into regions at the modules that repeat in it, so that each region type compiles once.

A diffusion UNet is mostly copies of a few transformer stacks. Compilers walk them all, for minutes; here the graph
becomes a sequence of regions, and regions that differ by nothing but their weights are of one type.

Each region takes the graph's own inputs first, needed or not, because their sizes name every symbol, and then the
tensors that earlier regions made. Sizes never cross: a region reads them off a tensor that it has anyway. A tensor
crosses in the layout that its readers are compiled for: which one compiled code would give it by itself, the export
does not tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from .graph_body import GraphBody, is_size, layout, signature
from .plan import RegionPlan, Step
from .repetition import CompileTime, Runs, repeating, slices

WORTH_IT = 0.75  # cut only if that has the graph compiled in at most this share of the time that it takes whole
# Times that are at most this much longer count as equal, and then fewer regions are better: each costs 60 us of a
# call's launching on a GPU.
_ALIKE = 1.15


def cut(exported: torch.export.ExportedProgram, time: CompileTime) -> tuple[RegionPlan, list[GraphModule]] | None:
    """Cut a graph where that has it compiled sooner.

    With more than one worker the graph is also cut where nothing repeats.

    Returns:
        The plan and one module for each region type; None where the graph is better compiled whole. A module is a
        function of tensors to a tuple of tensors. Its placeholders carry the fake tensors of the export, and its
        weights are those of the first region of its type.
    """
    graph = GraphBody.of(exported)
    if graph is None:
        return None
    signatures = [signature(node) for node in graph.nodes]

    def expected(runs: Runs) -> int:
        """As if what looks alike were of one type. Only written regions tell, and writing takes longer."""
        types = {tuple(signatures[run.start : run.stop]): len(run) for run in runs}
        return time.of_regions(types.values())

    most = WORTH_IT * time.of_whole(len(graph.nodes))
    candidates = [*repeating(graph, signatures)]
    if time.workers > 1:
        candidates += (slices(graph, count) for count in sorted({2, time.workers, 2 * time.workers}))
    times = [(expected([*runs]), [*runs]) for runs in dict.fromkeys(map(tuple, candidates)) if len(runs) > 1]
    best = min((seconds for seconds, _ in times), default=0)
    order = sorted(times, key=lambda timed: (0, len(timed[1])) if timed[0] <= _ALIKE * best else (1, timed[0]))
    for runs in (runs for needed, runs in order if needed <= most):
        assembled = _assemble(graph, runs)
        if assembled is not None:
            sizes = [sum(node.op == "call_function" for node in module.graph.nodes) for module in assembled[1]]
            if time.of_regions(sizes) <= most:
                return assembled
    return None


@dataclass
class _Region:
    """The operations of one run, and the tensors that it shares with others."""

    nodes: tuple[Node, ...]
    inputs: list[Node]  # made by earlier regions, in order of use
    outputs: list[Node]  # used by later regions


def _regions(graph: GraphBody, runs: Sequence[range]) -> list[_Region] | None:
    owner = {node: number for number, run in enumerate(runs) for node in (graph.nodes[i] for i in run)}
    regions = [_Region(tuple(graph.nodes[i] for i in run), [], []) for run in runs]
    graph_inputs = set(graph.inputs)

    def take(number: int, operand: Node) -> bool:
        """Make an operand available in a region; False where only a tensor could cross and it is none."""
        if operand in graph.weights or operand in graph_inputs or owner.get(operand) == number:
            return True
        if not isinstance(operand.meta.get("val"), torch.Tensor):
            return False
        region, maker = regions[number], regions[owner[operand]]
        if operand not in region.inputs:
            region.inputs.append(operand)
        if operand not in maker.outputs:
            maker.outputs.append(operand)
        return True

    for number, region in enumerate(regions):
        operands = [*dict.fromkeys(operand for node in region.nodes for operand in node.all_input_nodes)]
        if not all(take(number, operand) for operand in operands if not is_size(operand)):
            return None
        for size in filter(is_size, operands):
            for source in _sources(size, [*graph.inputs, *region.inputs, *region.nodes]):
                if not take(number, source):
                    return None
    for result in graph.results:
        maker = regions[owner[result]]
        if result not in maker.outputs:
            maker.outputs.append(result)
    order = {node: number for number, node in enumerate(graph.nodes)}
    for region in regions:
        region.outputs.sort(key=order.__getitem__)
    return regions


def _read_off(size: Node, tensors: Iterable[Node]) -> tuple[Node, int] | None:
    """A tensor and its dimension that has this size."""
    wanted = str(size.meta["val"])
    for tensor in tensors:
        value = tensor.meta.get("val")
        for dim, length in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if str(length) == wanted:
                return tensor, dim
    return None


def _sources(size: Node, available: Sequence[Node]) -> list[Node]:
    """The tensors that must be there to compute a size, if those that are do not tell."""
    if _read_off(size, available) is not None:
        return []
    sources: list[Node] = []
    for operand in size.all_input_nodes:
        sources += _sources(operand, available) if is_size(operand) else [operand]
    return sources


def _order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The order of the dimensions in which a tensor lies in memory without gaps; None: it does not."""
    for order in itertools.permutations(range(value.ndim)):
        dense: list[Any] = [1]
        for dim in reversed(order[1:]):
            dense.insert(0, dense[0] * value.shape[dim])
        if str(dense[: value.ndim]) == str([value.stride(dim) for dim in order]):  # asks for no size's value
            return order
    return None


def _crossing(value: torch.Tensor) -> torch.Tensor:
    """A value in the layout in which it goes from a region to others: its own where that has no gaps."""
    return value if _order(value) is not None else value.new_empty(value.shape)


class _Writer:
    """Writes one region as a graph of its own, with names that depend on nothing but what it computes."""

    def __init__(self, graph: GraphBody, region: _Region) -> None:
        self._graph, self._region = graph, region
        self._new = Graph()
        self._made: dict[Node, Node] = {}
        self.weights: dict[str, str] = {}  # the graph's name -> the region's
        self._inputs = [*graph.inputs, *region.inputs]

    def write(self) -> GraphModule:
        for number, node in enumerate(self._inputs):
            placeholder = self._new.placeholder(f"x{number}")
            placeholder.meta["val"] = _crossing(node.meta["val"])
            self._made[node] = placeholder
        for node in self._region.nodes:
            self._made[node] = self._copy(node)
        self._new.output(tuple(map(self._laid_out, self._region.outputs)))
        root = torch.nn.Module()
        for name, short in self.weights.items():
            tensor = self._graph.tensors[name]
            if isinstance(tensor, torch.nn.Parameter):
                root.register_parameter(short, tensor)
            else:
                root.register_buffer(short, tensor)
        return GraphModule(root, self._new)

    def key(self, module: GraphModule) -> tuple[str, ...]:
        """Return all that compiled code of the region depends on."""
        weights = (self._graph.tensors[name] for name in self.weights)
        return (
            module.code,
            *(layout(node.meta["val"]) for node in self._inputs),
            *(layout(node.meta["val"]) for node in self._region.nodes),
            *(f"{type(w).__name__} {layout(w)}" for w in weights),
        )

    def _copy(self, node: Node) -> Node:
        args, kwargs = map_arg((node.args, node.kwargs), self._operand)
        copy = self._new.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
        copy.meta["val"] = node.meta.get("val")
        return copy

    def _laid_out(self, node: Node) -> Node:
        """An output in the layout in which others take it, see `_crossing`."""
        made, value = self._made[node], node.meta["val"]
        order = _order(value)
        aten = torch.ops.aten
        if order is None or [*order] == sorted(order):
            return self._new.call_function(aten.contiguous.default, (made,))
        turned = self._new.call_function(aten.permute.default, (made, [*order]))
        dense = self._new.call_function(aten.contiguous.default, (turned,))
        return self._new.call_function(aten.permute.default, (dense, [*map(order.index, sorted(order))]))

    def _operand(self, node: Node) -> Node:
        made = self._made.get(node)
        if made is None:
            if node in self._graph.weights:
                made = self._weight(node)
            else:
                made = self._size(node)
            self._made[node] = made
        return made

    def _weight(self, node: Node) -> Node:
        short = self.weights.setdefault(self._graph.weights[node], f"w{len(self.weights)}")
        made = self._new.create_node("get_attr", short, name=short)
        made.meta["val"] = node.meta["val"]
        return made

    def _size(self, node: Node) -> Node:
        source = _read_off(node, [*self._inputs, *(n for n in self._region.nodes if n in self._made)])
        if source is None:
            return self._copy(node)
        size = self._new.call_function(torch.ops.aten.sym_size.int, (self._made[source[0]], source[1]))
        size.meta["val"] = node.meta["val"]
        return size


def _assemble(graph: GraphBody, runs: Sequence[range]) -> tuple[RegionPlan, list[GraphModule]] | None:
    regions = _regions(graph, runs)
    if regions is None:
        return None
    values = {node: number for number, node in enumerate(graph.inputs)}
    types: dict[tuple[str, ...], int] = {}
    modules: list[GraphModule] = []
    steps: list[Step] = []
    for region in regions:
        writer = _Writer(graph, region)
        module = writer.write()
        key = writer.key(module)
        if key not in types:
            types[key] = len(modules)
            modules.append(module)
        for node in region.outputs:
            values[node] = len(values)
        steps.append(
            Step(
                types[key],
                tuple(writer.weights),
                tuple(values[node] for node in (*graph.inputs, *region.inputs)),
                tuple(values[node] for node in region.outputs),
            )
        )
    return RegionPlan(len(graph.inputs), tuple(steps), tuple(values[node] for node in graph.results)), modules
