"""Sizes of 1 that are others in the calls that a graph was made for, or the other way about.

A tensor of size 1 in some dimension is broadcast: one timestep for all frames, where another call has one for each. The
two calls have one form, but each needs a graph of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from .rule import LeafDim
from .size_rules import SizeRules, Sizes


@dataclass(frozen=True)
class SizeOneDims:
    """By which calls differ from those that another graph of their form serves.

    Attributes:
        single: where their sizes are 1, but for those that follow a batch or a length of 1.
        several: where they are not, though the other graph's always are.
    """

    single: tuple[LeafDim, ...]
    several: tuple[LeafDim, ...]

    def fit(self, sizes: Sizes) -> bool:
        """Tell whether a call of the form is such a one."""
        return all(sizes[leaf][dim] == 1 for leaf, dim in self.single) and not any(
            sizes[leaf][dim] == 1 for leaf, dim in self.several
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return {"single": [*map(list, self.single)], "several": [*map(list, self.several)]}

    @classmethod
    def from_json(cls, data: Any) -> SizeOneDims:
        """Read what `to_json` made, which comes from this process' own parent."""
        single, several = (tuple((leaf, dim) for leaf, dim in data[name]) for name in ("single", "several"))
        return cls(single, several)


def differing_size_one_dims(rules: SizeRules, sizes: Sizes, tensors: Collection[int]) -> SizeOneDims | None:
    """Return how the sizes of 1 of a call that does not fit rules differ from what these say; None: they do not.

    Args:
        tensors: numbers of the leaves that are tensors.
    """
    values = [sizes[leaf][dim] for leaf, dim in rules.symbols]
    excluded = {number for number, (low, _) in enumerate(rules.ranges) if values[number] == 1 < low}
    broadcast = {*excluded}  # symbols that are read where this call has a 1 of another meaning
    for (leaf, dim), rule in rules.rules.items():
        if rule.kind == "symbol" and values[rule.symbols[0]] == 1 != sizes[leaf][dim]:
            broadcast.add(rule.symbols[0])
    as_ever: list[LeafDim] = []
    single: list[LeafDim] = []
    several: list[LeafDim] = []
    for place, rule in rules.rules.items():
        if place[0] not in tensors:  # 1 is a number as any other, unless the graph was compiled for all but it
            if place in rules.symbols and rules.symbols.index(place) in excluded:
                single.append(place)
            continue
        size = sizes[place[0]][place[1]]
        if rule.kind == "fixed" and rule.number == 1:
            (as_ever if size == 1 else several).append(place)
        elif size == 1 and (rule.value(values) != 1 or not broadcast.isdisjoint(rule.symbols)):
            single.append(place)
    return SizeOneDims(tuple(sorted([*single, *as_ever])), tuple(several)) if single or several else None
