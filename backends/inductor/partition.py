"""Cutting an exported graph into parts at the modules that repeat in it, so that a backend compiles each kind once.

A diffusion UNet is mostly copies of a few transformer stacks. Compilers walk them all, for minutes; here the graph
becomes a sequence of parts, and parts that differ by nothing but their weights are of one kind.

Each part takes the graph's own inputs first, needed or not, because their sizes name every symbol, and then the
tensors that earlier parts made. Sizes never cross: a part reads them off a tensor that it has anyway.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

WORTH_IT = 0.75  # cut only if that has the graph compiled in at most this share of the time that it takes whole
SMALLEST = 20  # operations; a smaller region is not worth a call of its own
# Times that are at most this much longer count as equal, and then fewer parts are better: each costs 60 us of a call's
# launching on a GPU.
_ALIKE = 1.15
_NEAR = 0.08  # of the graph: how far a slice may end from where it should, to cross fewer values


@dataclass(frozen=True)
class Step:
    """One part at its place in the graph.

    Attributes:
        kind: number of the part's kind.
        weights: the graph's weights that the part reads; it calls them w0, w1, ...
        inputs: numbers of the values that it takes, the graph's own inputs first.
        outputs: numbers of the values that it gives.
    """

    kind: int
    weights: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """How the parts make up the graph. Values 0 to `given - 1` are the graph's inputs, `result` is what it returns."""

    given: int
    steps: tuple[Step, ...]
    result: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        steps = (Step(s["kind"], *(tuple(s[name]) for name in ("weights", "inputs", "outputs"))) for s in data["steps"])
        return cls(data["given"], tuple(steps), data["result"])

    def last_uses(self) -> tuple[tuple[int, ...], ...]:
        """For each step the values, other than the graph's inputs, that no later step takes."""
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for value in (*step.inputs, *step.outputs):
                last[value] = number
        return tuple(
            tuple(v for v, at in last.items() if at == number and v >= self.given and v != self.result)
            for number in range(len(self.steps))
        )


def cut(exported: torch.export.ExportedProgram, workers: int, part_costs: int) -> tuple[Plan, list[GraphModule]] | None:
    """The plan and one module for each kind of part; None where it is better compiled whole.

    A kind's module is a function of tensors to a tuple of tensors. Its placeholders carry the fake tensors of the
    export, and its weights are those of the first place where the kind occurs.

    Args:
        workers: how many processes compile parts side by side. With more than one the graph is also cut where nothing
            repeats, if that has it compiled sooner.
        part_costs: operations that take as long as what every part costs besides its own: its C++ wrapper, its link,
            the passes over its graph.
    """
    graph = _Body.of(exported)
    if graph is None:
        return None
    looks = [_look(node) for node in graph.nodes]

    def expected(runs: list[range]) -> int:
        """As if what looks alike were of one kind, which only the parts themselves tell; writing them takes longer."""
        kinds = {tuple(looks[run.start : run.stop]): len(run) for run in runs}
        return _compile_time(kinds.values(), workers, part_costs)

    most = WORTH_IT * (len(graph.nodes) + part_costs)
    candidates = [*_repeating(graph, looks)]
    if workers > 1:
        candidates += (_slices(graph, count) for count in sorted({2, workers, 2 * workers}))
    times = [(expected([*runs]), [*runs]) for runs in dict.fromkeys(map(tuple, candidates)) if len(runs) > 1]
    best = min((time for time, _ in times), default=0)
    order = sorted(times, key=lambda found: (0, len(found[1])) if found[0] <= _ALIKE * best else (1, found[0]))
    for runs in (runs for time, runs in order if time <= most):
        found = _assemble(graph, runs)
        if found is not None:
            sizes = [sum(node.op == "call_function" for node in module.graph.nodes) for module in found[1]]
            if _compile_time(sizes, workers, part_costs) <= most:
                return found
    return None


def _compile_time(sizes: Iterable[int], workers: int, part_costs: int) -> int:
    """How long workers that take the largest part first are busy, in operations."""
    busy = [0] * workers
    for operations in sorted(sizes, reverse=True):
        busy[busy.index(min(busy))] += operations + part_costs
    return max(busy)


def _slices(graph: _Body, count: int) -> list[range]:
    """The graph's operations in that many consecutive runs of about the same length, fewer where none can end.

    A run ends where few values go on to the next, for what crosses can't be fused; only tensors may.
    """
    total = len(graph.nodes)
    crossing, other = _crossings(graph)
    ends = [0]
    for number in range(1, count):
        target = total * number // count
        nearest = range(max(ends[-1] + 1, int(target - _NEAR * total)), min(total, int(target + _NEAR * total) + 1))
        found = [(crossing[end], abs(end - target), end) for end in nearest if not other[end]]
        if found:
            ends.append(min(found)[2])
    return [range(start, end) for start, end in zip(ends, [*ends[1:], total], strict=True)]


def _crossings(graph: _Body) -> tuple[list[int], list[int]]:
    """For each place between two operations: how many values cross it, and how many of them are no tensors."""
    total = len(graph.nodes)
    place = {node: number for number, node in enumerate(graph.nodes)}
    crossing, other = [0] * (total + 1), [0] * (total + 1)
    for number, node in enumerate(graph.nodes):
        last = max((place[user] for user in node.users if user in place), default=total)
        for counts in (crossing, *([] if isinstance(node.meta.get("val"), torch.Tensor) else [other])):
            counts[number + 1] += 1
            if last < total:
                counts[last + 1] -= 1
    return list(accumulate(crossing)), list(accumulate(other))


@dataclass(frozen=True)
class _Body:
    """What of an exported graph computes: tensor operations in order, between inputs and one output."""

    inputs: tuple[Node, ...]
    weights: dict[Node, str]
    tensors: dict[str, torch.Tensor]  # the weights by name
    nodes: tuple[Node, ...]
    result: Node

    @classmethod
    def of(cls, exported: torch.export.ExportedProgram) -> _Body | None:
        """None for graphs with anything unusual in them."""
        signature = exported.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        inputs, weights, nodes = [], {}, []
        for node in exported.graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder":
                if node.name in names:
                    weights[node] = names[node.name]
                elif isinstance(value, torch.Tensor):
                    inputs.append(node)
                else:
                    return None
            elif node.op == "call_function" and not _is_check(node) and not _is_size(node):
                nodes.append(node)
            elif node.op not in ("call_function", "output"):
                return None
        results = [*exported.graph.output_node().args[0]]
        if len(results) != 1 or results[0] not in set(nodes):
            return None
        tensors = {**dict(exported.named_buffers()), **exported.state_dict}
        return cls(tuple(inputs), weights, tensors, tuple(nodes), results[0])


def _is_check(node: Node) -> bool:
    """A runtime assertion; what it asserts, the shape range already has."""
    return not node.users and node.meta.get("val") is None


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | int | torch.SymFloat | float | torch.SymBool | bool)


def _modules_of(node: Node) -> Iterator[str]:
    """The modules in whose forward the operation happens, outermost first."""
    for path, _ in (node.meta.get("nn_module_stack") or {}).values():
        yield path


def _look(node: Node) -> str:
    """An operation without its operands: what to compute and the form of the result."""
    return f"{node.target} {_form(node.meta.get('val'))}"


def _form(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device}"
    return str([_form(v) for v in value]) if isinstance(value, list | tuple) else str(value)


def _repeating(graph: _Body, looks: Sequence[str]) -> Iterator[list[range]]:
    """The graph's operations in consecutive runs: modules that repeat, and what is between them.

    First by the largest modules there are, and then by smaller and smaller ones, also by a few in a row together.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for number, node in enumerate(graph.nodes):
        for path in _modules_of(node):
            places[path].append(number)
    alike: dict[tuple[str, ...], set[range]] = defaultdict(set)
    for numbers in places.values():
        whole = range(numbers[0], numbers[-1] + 1)
        if len(whole) == len(numbers) >= SMALLEST:  # called once, with nothing of another module in between
            alike[tuple(looks[whole.start : whole.stop])].add(whole)
    groups = sorted((copies for copies in alike.values() if len(copies) > 1), key=lambda g: -len(next(iter(g))))
    for largest in sorted({len(next(iter(copies))) for copies in groups}, reverse=True):
        small = [copies for copies in groups if len(next(iter(copies))) <= largest]
        for factor in (1, 2, 4, 8):
            joined = [_joined(copies, factor * largest) for copies in small]
            yield _runs(len(graph.nodes), [*joined, *small] if factor > 1 else small)


def _joined(copies: Iterable[range], most: int) -> list[range]:
    """Copies that follow each other directly, as many together as they all can be with at most so many operations."""
    rows: list[list[range]] = []
    for copy in sorted(copies, key=lambda c: c.start):
        if rows and rows[-1][-1].stop == copy.start:
            rows[-1].append(copy)
        else:
            rows.append([copy])
    in_row, size = math.gcd(*map(len, rows)), len(rows[0][0])
    count = max(
        number for number in range(1, in_row + 1) if in_row % number == 0 and (number * size <= most or number == 1)
    )
    return [range(row[i].start, row[i + count - 1].stop) for row in rows for i in range(0, len(row), count)]


def _runs(total: int, groups: Iterable[Iterable[range]]) -> list[range]:
    """Operations in consecutive runs: the copies of each group where none of an earlier one is, and what is between."""
    taken = [False] * total
    regions: list[range] = []
    for copies in groups:
        free = [copy for copy in copies if not any(taken[copy.start : copy.stop])]
        if len(free) > 1:
            regions += free
            for copy in free:
                taken[copy.start : copy.stop] = [True] * len(copy)
    runs: list[range] = []
    start = 0
    for region in [*sorted(regions, key=lambda r: r.start), range(total, total)]:
        if region.start > start:
            runs.append(range(start, region.start))
        if region:
            runs.append(region)
        start = region.stop
    return runs


@dataclass
class _Part:
    """The operations of one run, and what they take from outside of it."""

    nodes: tuple[Node, ...]
    taken: list[Node]  # tensors of earlier parts, in order of use
    given: list[Node]  # tensors that later parts take


def _parts(graph: _Body, intervals: Sequence[range]) -> list[_Part] | None:
    owner = {node: number for number, run in enumerate(intervals) for node in (graph.nodes[i] for i in run)}
    parts = [_Part(tuple(graph.nodes[i] for i in run), [], []) for run in intervals]
    known = set(graph.inputs)

    def take(number: int, operand: Node) -> bool:
        """Make an operand available in a part; False where only a tensor could cross and it is none."""
        if operand in graph.weights or operand in known or owner.get(operand) == number:
            return True
        if not isinstance(operand.meta.get("val"), torch.Tensor):
            return False
        part, maker = parts[number], parts[owner[operand]]
        if operand not in part.taken:
            part.taken.append(operand)
        if operand not in maker.given:
            maker.given.append(operand)
        return True

    for number, part in enumerate(parts):
        operands = [*dict.fromkeys(operand for node in part.nodes for operand in node.all_input_nodes)]
        if not all(take(number, operand) for operand in operands if not _is_size(operand)):
            return None
        for size in filter(_is_size, operands):
            for source in _sources(size, [*graph.inputs, *part.taken, *part.nodes]):
                if not take(number, source):
                    return None
    last = parts[owner[graph.result]]
    if graph.result not in last.given:
        last.given.append(graph.result)
    order = {node: number for number, node in enumerate(graph.nodes)}
    for part in parts:
        part.given.sort(key=order.__getitem__)
    return parts


def _read_off(size: Node, tensors: Iterable[Node]) -> tuple[Node, int] | None:
    """A tensor and its dimension that has this size."""
    wanted = str(size.meta["val"])
    for tensor in tensors:
        value = tensor.meta.get("val")
        for dim, found in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if str(found) == wanted:
                return tensor, dim
    return None


def _sources(size: Node, available: Sequence[Node]) -> list[Node]:
    """The tensors that must be there to compute a size, if those that are do not tell."""
    if _read_off(size, available) is not None:
        return []
    sources: list[Node] = []
    for operand in size.all_input_nodes:
        sources += _sources(operand, available) if _is_size(operand) else [operand]
    return sources


class _Writer:
    """Writes one part as a graph of its own, with names that depend on nothing but what it computes."""

    def __init__(self, graph: _Body, part: _Part) -> None:
        self._graph, self._part = graph, part
        self._new = Graph()
        self._made: dict[Node, Node] = {}
        self.weights: dict[str, str] = {}  # the graph's name -> the part's
        self._placed = [*graph.inputs, *part.taken]

    def write(self) -> GraphModule:
        for number, node in enumerate(self._placed):
            placeholder = self._new.placeholder(f"x{number}")
            placeholder.meta["val"] = node.meta["val"]
            self._made[node] = placeholder
        for node in self._part.nodes:
            self._made[node] = self._copy(node)
        self._new.output(tuple(self._made[node] for node in self._part.given))
        root = torch.nn.Module()
        for name, short in self.weights.items():
            tensor = self._graph.tensors[name]
            if isinstance(tensor, torch.nn.Parameter):
                root.register_parameter(short, tensor)
            else:
                root.register_buffer(short, tensor)
        return GraphModule(root, self._new)

    def key(self, module: GraphModule) -> tuple[str, ...]:
        """All that compiled code of the part depends on."""
        weights = (self._graph.tensors[name] for name in self.weights)
        return (
            module.code,
            *(_form(node.meta["val"]) for node in self._placed),
            *(_form(node.meta["val"]) for node in self._part.nodes),
            *(f"{type(w).__name__} {_form(w)}" for w in weights),
        )

    def _copy(self, node: Node) -> Node:
        args, kwargs = map_arg((node.args, node.kwargs), self._operand)
        copy = self._new.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
        copy.meta["val"] = node.meta.get("val")
        return copy

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
        found = _read_off(node, [*self._placed, *(n for n in self._part.nodes if n in self._made)])
        if found is None:
            return self._copy(node)
        size = self._new.call_function(torch.ops.aten.sym_size.int, (self._made[found[0]], found[1]))
        size.meta["val"] = node.meta["val"]
        return size


def _assemble(graph: _Body, intervals: Sequence[range]) -> tuple[Plan, list[GraphModule]] | None:
    parts = _parts(graph, intervals)
    if parts is None:
        return None
    values = {node: number for number, node in enumerate(graph.inputs)}
    kinds: dict[tuple[str, ...], int] = {}
    modules: list[GraphModule] = []
    steps: list[Step] = []
    for part in parts:
        writer = _Writer(graph, part)
        module = writer.write()
        key = writer.key(module)
        if key not in kinds:
            kinds[key] = len(modules)
            modules.append(module)
        for node in part.given:
            values[node] = len(values)
        steps.append(
            Step(
                kinds[key],
                tuple(writer.weights),
                tuple(values[node] for node in (*graph.inputs, *part.taken)),
                tuple(values[node] for node in part.given),
            )
        )
    return Plan(len(graph.inputs), tuple(steps), values[graph.result]), modules
