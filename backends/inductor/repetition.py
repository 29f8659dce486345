"""Where a graph can be cut: at the modules that repeat in it, or into slices of about the same length.

A cut is a list of runs: consecutive ranges of the graph's operations that make up the whole of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.fx import Node

from .graph_body import GraphBody

SMALLEST = 20  # operations; a smaller region is not worth a call of its own
_NEAR = 0.08  # of the graph: how far a slice may end from where it should, to cross fewer values

Runs = list[range]


@dataclass(frozen=True)
class CompileTime:
    """How long compiling takes, in operations.

    Attributes:
        workers: how many processes compile regions side by side.
        region_costs: operations that take as long as what every region costs besides its own: its C++ wrapper, its
            link, the passes over its graph.
    """

    workers: int
    region_costs: int

    def of_regions(self, sizes: Iterable[int]) -> int:
        """Return how long workers that take the largest region first are busy.

        >>> CompileTime(workers=2, region_costs=10).of_regions([50, 30, 20])
        70
        """
        busy = [0] * self.workers
        for operations in sorted(sizes, reverse=True):
            busy[busy.index(min(busy))] += operations + self.region_costs
        return max(busy)

    def of_whole(self, operations: int) -> int:
        """Return how long a graph takes that is not cut."""
        return operations + self.region_costs


def repeating(graph: GraphBody, signatures: Sequence[str]) -> Iterator[Runs]:
    """Yield cuts into modules that repeat, and what is between them.

    First by the largest modules there are, and then by smaller and smaller ones, also by a few in a row together.
    """
    positions: dict[str, list[int]] = defaultdict(list)
    for number, node in enumerate(graph.nodes):
        for path in _modules_of(node):
            positions[path].append(number)
    alike: dict[tuple[str, ...], set[range]] = defaultdict(set)
    for numbers in positions.values():
        whole = range(numbers[0], numbers[-1] + 1)
        if len(whole) == len(numbers) >= SMALLEST:  # called once, with nothing of another module in between
            alike[tuple(signatures[whole.start : whole.stop])].add(whole)
    groups = sorted((copies for copies in alike.values() if len(copies) > 1), key=lambda g: -len(next(iter(g))))
    for largest in sorted({len(next(iter(copies))) for copies in groups}, reverse=True):
        small = [copies for copies in groups if len(next(iter(copies))) <= largest]
        for factor in (1, 2, 4, 8):
            joined = [_joined(copies, factor * largest) for copies in small]
            yield _runs(len(graph.nodes), [*joined, *small] if factor > 1 else small)


def slices(graph: GraphBody, count: int) -> Runs:
    """Cut the graph into that many runs of about the same length, fewer where none can end.

    A run ends where few values go on to the next, for what crosses can't be fused; only tensors may.
    """
    total = len(graph.nodes)
    crossing, other = _crossings(graph)
    ends = [0]
    for number in range(1, count):
        target = total * number // count
        nearest = range(max(ends[-1] + 1, int(target - _NEAR * total)), min(total, int(target + _NEAR * total) + 1))
        cuts = [(crossing[end], abs(end - target), end) for end in nearest if not other[end]]
        if cuts:
            ends.append(min(cuts)[2])
    return [range(start, end) for start, end in zip(ends, [*ends[1:], total], strict=True)]


def _modules_of(node: Node) -> Iterator[str]:
    """The modules in whose forward the operation happens, outermost first."""
    for path, _ in (node.meta.get("nn_module_stack") or {}).values():
        yield path


def _crossings(graph: GraphBody) -> tuple[list[int], list[int]]:
    """For each position between two operations: how many values cross it, and how many of them are no tensors."""
    total = len(graph.nodes)
    position = {node: number for number, node in enumerate(graph.nodes)}
    crossing, other = [0] * (total + 1), [0] * (total + 1)
    for number, node in enumerate(graph.nodes):
        last = max((position[user] for user in node.users if user in position), default=total)
        for counts in (crossing, *([] if isinstance(node.meta.get("val"), torch.Tensor) else [other])):
            counts[number + 1] += 1
            if last < total:
                counts[last + 1] -= 1
    return list(accumulate(crossing)), list(accumulate(other))


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


def _runs(total: int, groups: Iterable[Iterable[range]]) -> Runs:
    """The copies of each group where none of an earlier one is, and what is between."""
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
